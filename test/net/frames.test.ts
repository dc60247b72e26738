/**
 * Blocks that a holder is still computing come frame by frame over a data channel: real TCP, real gRPC and shared memory, an outbox whose engine is
 * played by the test. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import type { ToEngine } from '../../shared/engine/engine_messages.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { verifyRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import type { Arrived } from '../../shared/net/fetch/fetch_events.ts';
import { openFetch, type FetchLine } from '../../shared/net/fetch/fetch.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import {
  createFetchHandlers,
  type FetchHandlers,
  type FetchServerCounters,
} from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ChannelHost } from '../../shared/net/channel_host.ts';
import { DataChannels } from '../../shared/net/data_channels.ts';
import { systemMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import type { Listener } from '../../shared/net/network.ts';
import { Outbox } from '../../shared/instance/outbox.ts';
import type { FetchReply } from '../../shared/protocol/messages.ts';
import { inlineTransferThread } from '../support/inline_transfer_thread.ts';
import { slotsOf } from '../support/slab_slots.ts';
import { evenSpec } from '../support/kv.ts';
import { PATIENCE_MS, until } from '../support/until.ts';
import { FRAME_HEADER_BYTES } from '../../shared/kv/kv_spec.ts';

const layout: RecordLayout = {
  format: 'cd'.repeat(16) as Digest,
  numericsClass: 'none',
  spec: evenSpec({ numLayers: 4, blockSize: 4, payloadBytes: 400_000 }),
};
const BYTES = layout.spec.slotBytes;
const START = layout.spec.preambleBytes;
const { frames } = layout.spec;
const NUM_FRAMES = 4;
assert.equal(frames.length, NUM_FRAMES);
const NUM_BLOCKS = 6;
const hashes = chainOf(
  layout.format,
  4,
  Array.from({ length: 4 * NUM_BLOCKS }, (_, i) => i),
);
const never = new AbortController().signal;

/** Byte value that the device writes into a frame of a block. */
function valueOf(block: number, frame: number): number {
  return 1 + block * NUM_FRAMES + frame;
}

/** An outbox, data channels to it, and an engine that computes when the test says so. */
class Holder {
  readonly slab: Slab;
  readonly outbox: Outbox;
  readonly counters: FetchServerCounters;
  readonly handlers: FetchHandlers;
  readonly notified: ToEngine[] = [];
  readonly offered: bigint[] = [];
  readonly #credits: number[] = [];
  #listener: Listener | undefined;

  constructor(isShared: boolean, signal: AbortSignal, numSlots = 64) {
    this.slab = new Slab(numSlots * slotLength(BYTES));
    const transferThread = inlineTransferThread(this.slab, systemMemory);
    this.outbox = new Outbox({
      layout,
      slab: this.slab,
      numSlots,
      transferThread,
      clock: systemClock,
      log: silentLog,
      announcer: new Announcer('holder', () => undefined, systemClock, signal),
      sendToEngine: (message) => {
        this.notified.push(message);
        if (message.kind === 'grant') this.#credits.push(...message.slots);
      },
      onReady: ({ key }) => this.offered.push(key),
      onSlotFree: () => undefined,
    });
    this.outbox.grantSlots();
    const channels = new ChannelHost({
      transferThread,
      isShared,
      newId,
      signal,
      host: '127.0.0.1',
      port: 0,
      clock: systemClock,
      log: silentLog,
    });
    const { counters, ...handlers } = createFetchHandlers(() => this.outbox, { maxStreams: 64, channels });
    this.counters = counters;
    this.handlers = handlers;
  }

  async listen(network: GrpcNetwork, handlers: Partial<FetchHandlers> = {}): Promise<string> {
    this.#listener = await network.listen('127.0.0.1:0', { ...this.handlers, ...handlers });
    return this.#listener.address;
  }

  /** A step begins that fills these blocks. */
  begin(blocks: readonly number[]): number[] {
    return blocks.map(() => this.#credits.pop()!);
  }

  frame(frame: number, blocks: readonly number[], slots: readonly number[]): void {
    const { slotOffset, rawBytes } = frames[frame]!;
    blocks.forEach((block, i) =>
      slotBytes(this.slab.memory, slots[i]! + slotOffset, rawBytes).fill(valueOf(block, frame)),
    );
    const of = blocks.map((block, i) => ({ hash: hashes[block]!, slot: slots[i]! }));
    this.outbox.onEngineEvent({ kind: 'frame', frame, blocks: of });
  }

  /** Ends the step: the blocks are stored and exported. */
  end(blocks: readonly number[], slots: readonly number[]): void {
    blocks.forEach((block, i) => {
      const hash = hashes[block]!;
      this.outbox.onEngineEvent({ kind: 'stored', origin: 'computed', hash });
      this.outbox.onEngineEvent({ kind: 'exported', hash, slot: slots[i]!, anchor: hash.anchor });
    });
  }

  step(blocks: readonly number[]): void {
    const slots = this.begin(blocks);
    for (let frame = 0; frame < NUM_FRAMES; frame++) this.frame(frame, blocks, slots);
    this.end(blocks, slots);
  }

  async close(): Promise<void> {
    await this.#listener?.close(100);
  }
}

type Seen = Pick<Arrived, 'index' | 'frame' | 'isLast' | 'fault'>;

interface Reading {
  readonly seen: Seen[];
  readonly done: Promise<void>;
  /** Slots that were whole when they came: what lies in them. */
  readonly payloads: Map<number, Buffer>;
}

describe.each([false, true])('with memory that both share: %s', (isShared) => {
  let stopped: AbortController;
  let network: GrpcNetwork;
  let holder: Holder;
  let slab: Slab;
  let line: FetchLine;
  let address: string;

  async function start(numSlots?: number, handlers?: (holder: Holder) => Partial<FetchHandlers>): Promise<void> {
    stopped = new AbortController();
    network = new GrpcNetwork('', systemClock);
    holder = new Holder(isShared, stopped.signal, numSlots);
    address = await holder.listen(network, handlers?.(holder));
    slab = new Slab(32 * slotLength(BYTES));
    const transferThread = inlineTransferThread(slab, systemMemory);
    const { signal } = stopped;
    const channels = new DataChannels({
      network,
      transferThread,
      isShared,
      clock: systemClock,
      log: silentLog,
      signal,
    });
    line = { network, transferThread, channels, moved: nothingMoved(), clock: systemClock, random: new Random(1) };
  }

  async function stop(): Promise<void> {
    stopped.abort();
    await holder.close();
    network.close();
  }

  beforeEach(() => start());
  afterEach(stop);

  async function restart(...how: Parameters<typeof start>): Promise<void> {
    await stop();
    await start(...how);
  }

  function read({
    most = Infinity,
    signal = never,
    of = hashes,
    wanted,
  }: { most?: number; signal?: AbortSignal; of?: typeof hashes; wanted?: readonly number[] } = {}): Reading {
    const stream = openFetch(line, address, {
      context: {
        requestId: 'r',
        tenant: '',
        priority: 0,
        timeoutMs: PATIENCE_MS,
        traceId: '',
        router: '',
        placement: 0,
        expectedTokens: 0,
      },
      format: layout.format,
      hashes: of,
      signal,
      slotBytes: BYTES,
      frames,
      wanted,
      patienceMs: undefined,
      waitMs: 5_000,
      timeoutMs: PATIENCE_MS,
    });
    const slots = slotsOf(slab, BYTES, signal, most);
    const seen: Seen[] = [];
    const payloads = new Map<number, Buffer>();
    const all = async (): Promise<void> => {
      for await (const incoming of stream.records(slots)) {
        for (const { index, slot, frame, isLast, fault } of incoming) {
          seen.push({ index, frame, isLast, fault });
          if (!isLast) continue;
          payloads.set(index, Buffer.from(slotBytes(slab.memory, slot + START, layout.spec.payloadBytes)));
          slots.release(slot);
        }
      }
    };
    return { seen, payloads, done: all() };
  }

  /** `others`: what lies where frames that are not wanted would. */
  function assertPayloads({ payloads }: Reading, wanted?: readonly number[], others?: number): void {
    assert.deepEqual(
      [...payloads.keys()],
      hashes.map((_, i) => i),
      'in order',
    );
    for (const [block, payload] of payloads) {
      for (const [i, { rawBytes: bytes }] of frames.entries()) {
        const part = payload.subarray(i * bytes, (i + 1) * bytes);
        assert(
          part.every((value) => value === (wanted?.includes(i) === false ? (others ?? value) : valueOf(block, i))),
          `frame ${i} of block ${block}`,
        );
      }
    }
  }

  /** Resolves when no fetch is open, no slot is in use and no record is borrowed. */
  async function isAtRest(): Promise<void> {
    await until('nobody fetches (R2)', () => holder.counters.openStreams === 0);
    await until('no slot is in use', () => slab.numInUse === 0);
    await until('nothing is on loan', () => holder.outbox.cache.numBorrowable(BYTES) === Math.floor(64 / 4));
    for (const { kind, ...rest } of holder.notified) assert(kind !== 'await' || 'keys' in rest);
    const isOn = holder.notified.flatMap((one) => (one.kind === 'await' ? [one.isOn] : []));
    assert.equal(isOn.filter((one) => one).length, isOn.filter((one) => !one).length, 'nobody waits for blocks');
  }

  test('frames come while later ones are computed, each verified alone; the record is whole at the end', async () => {
    const reading = read();
    await until('the engine is told who is waited for', () => holder.notified.some(({ kind }) => kind === 'await'));
    const first = [0, 1, 2];
    const slots = holder.begin(first);
    for (let frame = 0; frame < NUM_FRAMES; frame++) {
      assert.equal(reading.seen.length, 3 * frame);
      holder.frame(frame, first, slots);
      await until('the frame is there', () => reading.seen.length === 3 * (frame + 1));
      assert.deepEqual(
        reading.seen.slice(-3),
        first.map((index) => ({ index, frame, isLast: frame === NUM_FRAMES - 1, fault: undefined })),
      );
    }
    assert.equal(holder.outbox.cache.size, 0, 'all is there, and no record is whole');
    holder.end(first, slots);
    holder.step([3, 4, 5]);
    await reading.done;
    assertPayloads(reading);
    await isAtRest();
    assert.equal(holder.offered.length, NUM_BLOCKS);
    for (const hash of hashes) {
      const borrowed = holder.outbox.borrowResident(hash)!;
      assert.equal(verifyRecord(borrowed.record, { format: layout.format, digest: hash.digest }), undefined);
      borrowed.release();
    }
    assert.equal(line.moved[isShared ? 'memory' : 'socket'], NUM_BLOCKS * (BYTES - START));
  });

  test.each([[[1, 3]], [[0]], [[2]]])(
    'only frames %j are wanted, of blocks that grow and of such that are there',
    async (wanted) => {
      const partBytes = wanted.reduce((sum, frame) => sum + frames[frame]!.rawBytes, 0);
      const inFlight = read({ wanted });
      await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
      holder.step([0, 1, 2, 3]);
      holder.step([4, 5]);
      await inFlight.done;
      assertPayloads(inFlight, wanted, 0);
      await isAtRest();
      for (const most of [Infinity, 2]) {
        const there = read({ wanted, most });
        await there.done;
        assertPayloads(there, wanted);
        assert.deepEqual(
          there.seen.map(({ index, frame, isLast }) => `${index} ${frame} ${isLast}`).sort(),
          hashes.flatMap((_, index) => wanted.map((frame) => `${index} ${frame} ${frame === wanted.at(-1)}`)).sort(),
        );
        await isAtRest();
      }
      assert.equal(line.moved[isShared ? 'memory' : 'socket'], 3 * NUM_BLOCKS * partBytes);
      // Over calls a record comes whole, and is used whole.
      line = { ...line, channels: undefined };
      const called = read({ wanted });
      await called.done;
      assert(called.seen.every(({ frame, isLast }) => frame === undefined && isLast));
      assertPayloads(called);
      await isAtRest();
    },
  );

  test('a frame that records do not have is refused', async () => {
    holder.step([0, 1, 2, 3, 4, 5]);
    await assert.rejects(read({ wanted: [NUM_FRAMES] }).done, /a record has 4 frames/);
    await isAtRest();
  });

  test('whoever has few slots gets the blocks after one another, and keeps nobody from anything', async () => {
    const readings = [read({ most: 1 }), read({ most: 2 }), read()];
    await until('all ask', () => holder.notified.filter(({ kind }) => kind === 'await').length === 3);
    holder.step([0, 1, 2, 3]);
    holder.step([4, 5]);
    for (const reading of readings) {
      await reading.done;
      assertPayloads(reading);
    }
    await isAtRest();
  });

  test('more than may be on loan come when they are whole', async () => {
    await restart(12);
    const reading = read();
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    holder.step([0, 1, 2]);
    await until('those that may are lent', () => reading.payloads.size > 0);
    holder.step([3, 4]);
    await until('their slots are free again', () => reading.payloads.size >= 5);
    holder.step([5]);
    await reading.done;
    assertPayloads(reading);
  });

  test('a frame that is damaged in its slot is found, and nothing of its block is used', async () => {
    const reading = read({ most: 1 });
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    const slots = holder.begin([0]);
    holder.frame(0, [0], slots);
    await until('the first frame is there', () => reading.seen.length === 1);
    const { slotOffset } = frames[1]!;
    holder.frame(1, [0], slots);
    slotBytes(holder.slab.memory, slots[0]! + slotOffset, 1)[0] = 0xff;
    await until('the second is there', () => reading.seen.length === 2);
    assert.match(reading.seen[1]!.fault!, /the checksum of layers 1 to 1 differs/);
    holder.frame(2, [0], slots);
    holder.frame(3, [0], slots);
    holder.end([0], slots);
    holder.step([1, 2, 3, 4, 5]);
    await reading.done;
    await isAtRest();
  });

  test('a reader that leaves in the middle: its slots and the holder’s are free when nobody writes or reads them', async () => {
    const reader = new AbortController();
    const reading = read({ signal: reader.signal });
    const other = read();
    await until('both ask', () => holder.notified.filter(({ kind }) => kind === 'await').length === 2);
    const slots = holder.begin([0, 1]);
    holder.frame(0, [0, 1], slots);
    await until('the first frames are there', () => reading.seen.length === 2 && other.seen.length === 2);
    reader.abort();
    await assert.rejects(reading.done);
    for (const frame of [1, 2, 3]) holder.frame(frame, [0, 1], slots);
    holder.end([0, 1], slots);
    holder.step([2, 3, 4, 5]);
    await other.done;
    assertPayloads(other);
    await isAtRest();
  });

  test('a block that was there already when its record became whole: one copy stays, and readers get theirs', async () => {
    const reading = read();
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    const slots = holder.begin([0]);
    holder.frame(0, [0], slots);
    const again = holder.begin([0]);
    for (let frame = 0; frame < NUM_FRAMES; frame++) holder.frame(frame, [0], again);
    holder.end([0], again);
    await until('a record is whole', () => holder.outbox.cache.size === 1);
    for (const frame of [1, 2, 3]) holder.frame(frame, [0], slots);
    holder.end([0], slots);
    holder.step([1, 2, 3, 4, 5]);
    await reading.done;
    assertPayloads(reading);
    await isAtRest();
    assert.equal(holder.outbox.cache.size, NUM_BLOCKS);
  });

  test('whoever asks for a block several times has it on loan once', async () => {
    const [first] = hashes;
    const reading = read({ of: [first!, first!, first!] });
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    holder.step([0]);
    await reading.done;
    assert.equal(reading.payloads.size, 3);
    await isAtRest();
  });

  test('over calls they come whole', async () => {
    line = { ...line, channels: undefined };
    const reading = read();
    await until('it asks', () => holder.counters.openStreams === 1);
    holder.step([0, 1, 2]);
    holder.step([3, 4, 5]);
    await reading.done;
    assert(reading.seen.every(({ frame }) => frame === undefined));
    assertPayloads(reading);
    await isAtRest();
  });

  const said = Buffer.alloc(FRAME_HEADER_BYTES);
  test.each<[string, Partial<FetchReply>]>([
    ['a frame that is not the next one', { frame: 2 }],
    ['frames of more blocks than were asked for', { numReady: 7, frameHeaders: Buffer.alloc(7 * FRAME_HEADER_BYTES) }],
    ['frames of no block', { numReady: 0, frameHeaders: Buffer.alloc(0) }],
    ['a frame of another block', { index: 1 }],
    ['frames of records of another size', { totalBytes: BYTES + 1 }],
    ['a frame of which too little is said', { frameHeaders: said.subarray(1) }],
    ['a frame that records do not have', { frame: NUM_FRAMES + 1 }],
  ])('a holder that sends %s is not believed', async (_name, lie) => {
    await restart(64, () => ({
      async *fetch() {
        yield {
          index: 0,
          offset: 0,
          totalBytes: BYTES,
          data: Buffer.alloc(0),
          numReady: 1,
          frame: 1,
          frameHeaders: said,
          numFromDisk: 0,
          ...lie,
        };
      },
    }));
    await assert.rejects(read().done, /sent frame .* not the next one/);
    await until('no slot is in use', () => slab.numInUse === 0);
  });

  test('a holder that ends in the middle of a block', async () => {
    await restart(64, (own) => ({
      async *fetch(requests, call) {
        for await (const reply of own.handlers.fetch(requests, call)) {
          yield reply;
          if (reply.frame === 3) return;
        }
      },
    }));
    const reading = read({ most: 1 });
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    holder.step([0]);
    await assert.rejects(reading.done, /ended in the middle of a block/);
    await until('no slot is in use', () => slab.numInUse === 0);
  });

  test('a holder that describes another frame, or another block’s', async () => {
    await restart(64, (own) => ({
      async *fetch(requests, call) {
        for await (const reply of own.handlers.fetch(requests, call))
          yield { ...reply, frameHeaders: reply.frame === 2 ? said : reply.frameHeaders };
      },
    }));
    const reading = read();
    await until('it asks', () => holder.notified.some(({ kind }) => kind === 'await'));
    for (const block of [0, 1, 2, 3, 4, 5]) holder.step([block]);
    await reading.done;
    const faulty = reading.seen.filter(({ fault }) => fault !== undefined);
    assert(faulty.length > 0 && faulty.every(({ frame }) => frame === 1));
    assert.match(faulty[0]!.fault!, /the header of the frame at layer 1 is damaged, or another block's/);
    await isAtRest();
  });
});
