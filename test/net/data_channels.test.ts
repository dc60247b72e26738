/** Records over plain sockets alongside the calls: real TCP, real gRPC, transfer threads in this thread. Budget: 20 s. */
import assert from 'node:assert/strict';
import { getEventListeners, once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, onTestFinished, test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { noFrame } from '../../shared/protocol/messages.ts';
import type { Arrived } from '../../shared/net/fetch/fetch_events.ts';
import { openFetch, type FetchLine } from '../../shared/net/fetch/fetch.ts';
import type { LinkMeasure } from '../../shared/net/fetch/link_meter.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { createFetchHandlers, type FetchServerCounters } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ChannelHost } from '../../shared/net/channel_host.ts';
import { DataChannel } from '../../shared/net/data_channel.ts';
import { DataChannels } from '../../shared/net/data_channels.ts';
import { asksOf, HEAD_BYTES, headOf, CHANNEL_TOKEN_BYTES } from '../../shared/net/transfer_thread/channel_messages.ts';
import { aheadOf, fetchAheadOf } from '../../shared/net/fetch/transfer_bounds.ts';
import { startTransferThread, type TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import type { TransferThreadEvent } from '../../shared/net/transfer_thread/transfer_methods.ts';
import { ChannelServer } from '../../shared/net/transfer_thread/channel_server.ts';
import type { ByteSocket, SocketListener, Sockets } from '../../shared/net/transfer_thread/sockets.ts';
import { systemMemory, type HostMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import type { Handlers, Listener } from '../../shared/net/network.ts';
import { inlineTransferThread } from '../support/inline_transfer_thread.ts';
import { cacheSource } from '../support/borrowing.ts';
import { slotsOf } from '../support/slab_slots.ts';
import { evenSpec } from '../support/kv.ts';
import { aborted, PATIENCE_MS, staysSo, turn, until } from '../support/until.ts';

const layout: RecordLayout = {
  format: 'cd'.repeat(16) as Digest,
  numericsClass: 'none',
  spec: evenSpec({ numLayers: 4, blockSize: 4, payloadBytes: 200_000 }),
};
const BYTES = layout.spec.slotBytes;
const NUM_BLOCKS = 60;
/** Most records that may be borrowed at once. */
const NUM_LOANABLE = NUM_BLOCKS / 4;
const hashes = chainOf(
  layout.format,
  4,
  Array.from({ length: 4 * NUM_BLOCKS }, (_, i) => i),
);

/** Records that were asked for over data channels. */
let numAsked = 0;

/** Transfer threads, and what copies for them, are threads of their own; ended with the test. */
let threads: TransferThread[] | undefined;

async function watchedTransferThread(slab: Slab): Promise<TransferThread> {
  if (!threads) return inlineTransferThread(slab, watchedMemory, ({ indices }) => (numAsked += indices.length));
  const transferThread = startTransferThread(workerThreads, assert.fail);
  threads.push(transferThread);
  await transferThread.call('attach', { memory: slab.memory, isShared });
  return transferThread;
}

interface Holder {
  readonly address: string;
  readonly cache: RecordCache;
  readonly slab: Slab;
  readonly counters: FetchServerCounters;
  readonly close: () => Promise<void>;
}

const network = new GrpcNetwork('', systemClock);
let stopped: AbortController;
/** Whether the current test shares memory between the two ends. */
let isShared = false;
/** Hooks of the current test: `onPlace` decides whether a record may be read in place, `onGet` sees each record that is. */
let [onPlace, onGet]: [() => boolean, (record: Uint8Array) => void] = [() => true, () => undefined];
let numThroughMemory = 0;
/** Waits of the data channels' side that asks. */
let waitsMs: number[] = [];
const watchedClock: Clock = {
  ...systemClock,
  sleep: (ms, signal) => {
    waitsMs.push(ms);
    // eslint-disable-next-line time/speed -- the clock itself
    return systemClock.sleep(ms, signal);
  },
};
const watchedMemory: HostMemory = {
  host: systemMemory.host,
  attach: (memory, mayShare) => {
    const own = systemMemory.attach(memory, mayShare);
    return {
      name: own.name,
      bytes: (slot, length) => own.bytes(slot, length),
      offsetOf: (start, end) => (onPlace() ? own.offsetOf(start, end) : undefined),
    };
  },
  open: (name) => {
    const borrowed = systemMemory.open(name);
    return (
      borrowed && {
        at: (place, length) => {
          const record = Buffer.from(borrowed.at(place, length)!);
          numThroughMemory++;
          onGet(record);
          return record;
        },
        close: () => {
          borrowed.close();
        },
      }
    );
  },
};
let slab: Slab;
let line: FetchLine;
let holder: Holder;

async function listen(handlers: Handlers): Promise<Listener> {
  return network.listen('127.0.0.1:0', handlers);
}

/** Opens the data channel to a holder ahead of the first fetch, which waits 100 ms for it and then goes on without. */
async function openChannel(address: string): Promise<void> {
  const { channels } = line;
  if (channels) await until('there is a data channel', () => channels.to(address, true));
}

/** `numHeld` blocks in host memory. */
async function startHolder(
  numHeld = NUM_BLOCKS,
  hasChannels = true,
  { of = hashes, numSlots = NUM_BLOCKS } = {},
): Promise<Holder> {
  const own = new Slab(numSlots * slotLength(BYTES));
  const transferThread = await watchedTransferThread(own);
  const wanted = new WantedKeys();
  const cache = new RecordCache(own, { onEvict: () => undefined, isWanted: (key) => wanted.has(key) });
  for (const hash of of.slice(0, numHeld)) {
    const slot = cache.acquireSlot(BYTES)!;
    slotBytes(own.memory, slot, BYTES).fill(Number(hash.key & 0xffn));
    sealRecord(slotBytes(own.memory, slot, BYTES), layout, hash);
    cache.put({ hash, slot, bytes: BYTES, format: layout.format });
  }
  const { signal } = stopped;
  const channels = new ChannelHost({
    transferThread,
    isShared,
    host: '127.0.0.1',
    port: 0,
    newId,
    clock: systemClock,
    log: silentLog,
    signal,
  });
  const { counters, ...handlers } = createFetchHandlers(() => cacheSource(cache, wanted), {
    maxStreams: 64,
    channels: hasChannels ? channels : undefined,
  });
  const listener = await listen(handlers);
  if (hasChannels) await openChannel(listener.address);
  return { address: listener.address, cache, slab: own, counters, close: () => listener.close(100) };
}

async function begin(): Promise<void> {
  stopped = new AbortController();
  slab = new Slab(256 * slotLength(BYTES));
  const transferThread = await watchedTransferThread(slab);
  const channels = new DataChannels({
    network,
    transferThread,
    isShared,
    clock: watchedClock,
    log: silentLog,
    signal: stopped.signal,
  });
  line = { network, transferThread, channels, moved: nothingMoved(), clock: systemClock, random: new Random(1) };
  holder = await startHolder();
}

async function end(): Promise<void> {
  stopped.abort();
  await holder.close();
}

/** With what the test has set meanwhile. */
async function restart(): Promise<void> {
  await end();
  await begin();
}

beforeEach(begin);
afterEach(end);

type Fetched = Arrived & { readonly bytes: Uint8Array };

/** Links that the latest fetch has measured. */
let links: readonly LinkMeasure[] = [];

/** Slots are given back when `each` is through with them. */
async function fetchFrom(
  address: string,
  each: (arrived: Fetched) => Promise<void> | void = () => undefined,
  { signal = new AbortController().signal, most = Infinity }: { signal?: AbortSignal; most?: number } = {},
): Promise<number> {
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
    hashes,
    signal,
    slotBytes: BYTES,
    patienceMs: undefined,
    waitMs: 0,
    timeoutMs: PATIENCE_MS,
  });
  const slots = slotsOf(slab, BYTES, signal, most);
  let numHere = 0;
  for await (const incoming of stream.records(slots)) {
    for (const arrived of incoming) {
      numHere++;
      try {
        await each({ ...arrived, bytes: slotBytes(slab.memory, arrived.slot, BYTES) });
      } finally {
        slots.release(arrived.slot);
      }
    }
  }
  ({ links } = stream);
  return numHere;
}

/** Every block is there, whole and in order. */
async function fetchesAll(address = holder.address): Promise<void> {
  const wanted = [...hashes];
  const num = await fetchFrom(address, ({ index, fault, bytes }) => {
    assert.equal(fault, undefined);
    assert.equal(index, NUM_BLOCKS - wanted.length);
    assert.equal(bytes.at(-1), Number(wanted.shift()!.key & 0xffn));
  });
  assert.equal(num, NUM_BLOCKS);
}

/** Resolves when no fetch is open, no slot is in use and no record is borrowed. */
async function isAtRest(): Promise<void> {
  await until('nobody fetches (R2)', () => holder.counters.openStreams === 0);
  await until('no slot is in use', () => slab.numInUse === 0);
  await until('nothing is on loan', () => holder.cache.numBorrowable(BYTES) === NUM_LOANABLE);
}

/** Sockets of data channels that this process has open to a port, through a relay that can be cut. */
async function relayTo(port: number): Promise<{ port: number; sockets: Socket[]; close: () => void }> {
  const sockets: Socket[] = [];
  const server = createServer((near) => {
    const far = connect({ host: '127.0.0.1', port });
    for (const socket of [near, far]) {
      sockets.push(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => {
        near.destroy();
        far.destroy();
      });
    }
    near.pipe(far);
    far.pipe(near);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, sockets, close: () => server.close() };
}

/** Tests that every way for records must pass. */
describe.each(['call', 'socket', 'memory'] as const)('by way of a %s', (way) => {
  beforeEach(async () => {
    isShared = way === 'memory';
    await restart();
    if (way === 'call') line = { ...line, channels: undefined };
  });
  afterEach(() => {
    isShared = false;
  });

  test('records come whole and in order, by several streams at once, that way', async () => {
    await fetchesAll();
    assert(line.moved[way] >= (NUM_BLOCKS / 2) * BYTES, JSON.stringify(line.moved));
    // The link has each byte that came over its data channel once.
    const link = links.find((one) => one.way === way);
    if (way !== 'call') assert.equal(link?.bytes, line.moved[way]);
    if (way !== 'call') assert(link!.movingMs > 0, JSON.stringify(link));
    await Promise.all(Array.from({ length: 6 }, () => fetchesAll()));
    await isAtRest();
    assert(line.moved[way] >= NUM_BLOCKS * BYTES);
    assert.equal(line.moved.call + line.moved.socket + line.moved.memory, 7 * NUM_BLOCKS * BYTES);
    const other = await startHolder(NUM_BLOCKS, false);
    await fetchesAll(other.address);
    await other.close();
  });

  test('what is damaged is said to be, and what comes after it comes', async () => {
    const third = holder.cache.find(hashes[2]!)!;
    const record = slotBytes(holder.slab.memory, third.slot, BYTES);
    record[BYTES - 9] = record[BYTES - 9]! ^ 1;
    const faults: (string | undefined)[] = [];
    await fetchFrom(holder.address, ({ fault }) => void faults.push(fault));
    assert.equal(faults.length, NUM_BLOCKS);
    assert.deepEqual(
      faults.flatMap((fault, i) => (fault === undefined ? [] : [[i, fault]])),
      [[2, 'the checksum of layers 2 to 3 differs']],
    );
  });

  test('a run ends at the first block that its holder lacks', async () => {
    const other = await startHolder(17);
    assert.equal(await fetchFrom(other.address), 17);
    await other.close();
  });

  test('a reader that leaves, and one that is told to stop, leave nothing behind (R2)', async () => {
    await assert.rejects(
      fetchFrom(holder.address, ({ index }) => {
        if (index === 3) throw new Error('enough');
      }),
      /enough/,
    );
    await isAtRest();
    const reader = new AbortController();
    const reading = fetchFrom(
      holder.address,
      ({ index }) => {
        if (index === 5) reader.abort();
      },
      { signal: reader.signal },
    );
    await assert.rejects(reading);
    await isAtRest();
    await fetchesAll();
  });

  // Over calls the window of the connection is that of one stream (grpc-js): a reader that stops can keep the others waiting.
  const unlessByCall: (name: string, run: () => Promise<void>) => void = way === 'call' ? () => undefined : test;
  unlessByCall(
    'a reader that stops keeps at most a quarter of what its holder has from moving, and nobody else from reading',
    async () => {
      let go: () => void = () => undefined;
      const stop = new Promise<void>((resolve) => {
        go = resolve;
      });
      let hasStopped = false;
      const halt = ({ index }: Fetched): Promise<void> | undefined => {
        hasStopped ||= index === 1;
        return index === 1 ? stop : undefined;
      };
      const stopping = fetchFrom(holder.address, halt, { most: 4 });
      await until('the reader stops', () => hasStopped);
      await fetchesAll();
      await until('only the one that stops has something', () => holder.counters.openStreams === 1);
      if (way === 'socket') assert(holder.cache.numBorrowable(BYTES) < NUM_LOANABLE, 'what lies ready for it stays');
      // The others can be taken from whoever lies in them.
      const taken = Array.from({ length: 100 }, () => holder.cache.acquireSlot(BYTES)).filter(
        (slot) => slot !== undefined,
      );
      assert(taken.length >= (3 / 4) * NUM_BLOCKS && taken.length <= NUM_BLOCKS, `${taken.length} slots`);
      for (const slot of taken) holder.cache.releaseSlot(slot);
      go();
      assert((await stopping) > 2);
      await isAtRest();
    },
  );
});

test('what a quarter of memory has no room for goes over calls next to the data channels, and where there are none all of it', async () => {
  numAsked = 0;
  await Promise.all(Array.from({ length: 6 }, () => fetchesAll()));
  await isAtRest();
  assert(numAsked >= NUM_BLOCKS / 2 && numAsked <= 6 * NUM_BLOCKS, `${numAsked} over data channels`);
  numAsked = 0;
  const other = await startHolder(NUM_BLOCKS, false);
  await fetchesAll(other.address);
  assert.equal(numAsked, 0);
  await other.close();
});

describe('data channels that break', () => {
  /** A holder whose data channels go through a relay. */
  async function relayed(): Promise<{ address: string; cut: () => void; close: () => Promise<void> }> {
    const relays: Awaited<ReturnType<typeof relayTo>>[] = [];
    const own = { signal: stopped.signal, timeoutMs: PATIENCE_MS };
    const listener = await listen({
      fetch: (requests, call) => network.open(holder.address, 'fetch', requests, { ...own, signal: call.signal }),
      async *openChannel(requests) {
        for await (const reply of network.open(holder.address, 'openChannel', requests, own)) {
          const relay = await relayTo(reply.port);
          relays.push(relay);
          yield { ...reply, port: relay.port };
        }
      },
    });
    await openChannel(listener.address);
    return {
      address: listener.address,
      cut: () => {
        for (const { sockets } of relays) for (const socket of sockets) socket.destroy();
      },
      close: () => {
        for (const { close } of relays) close();
        return listener.close(100);
      },
    };
  }

  test("a fetch goes on where its data channel broke, and slots are nobody else's before", async () => {
    const { address, cut, close } = await relayed();
    let next = 0;
    const num = await fetchFrom(address, ({ index, fault, bytes }) => {
      assert.equal(fault, undefined);
      assert.equal(index, next);
      assert.equal(bytes.at(-1), Number(hashes[next++]!.key & 0xffn));
      if (index === 10 || index === 30) cut();
    });
    assert.equal(num, NUM_BLOCKS);
    await isAtRest();
    numAsked = 0;
    await until('a later one has a data channel again', async () => {
      await fetchesAll(address);
      return numAsked > 0;
    });
    await close();
  });

  test('where they break again and again blocks come over calls', async () => {
    const { address, cut, close } = await relayed();
    let isCutting = true;
    const cutting = (async () => {
      while (isCutting) {
        cut();
        await turn();
      }
    })();
    for (let i = 0; i < 5; i++) await fetchesAll(address);
    isCutting = false;
    await cutting;
    await isAtRest();
    await close();
  });
});

describe('memory that a data channel has', () => {
  test('a slot that a holder has begun to write into is free when the holder is done, or cut off', async () => {
    let ended: Promise<unknown> = Promise.resolve();
    const server = createServer((socket) => {
      ended = new Promise((resolve) => socket.on('close', resolve));
      socket.on('error', () => undefined);
      let numHeard = 0;
      socket.on('data', (data: Buffer) => {
        numHeard += data.length;
        if (numHeard === CHANNEL_TOKEN_BYTES) socket.write(headOf({ stream: 0, index: 0, bytes: 0 }));
        if (numHeard === CHANNEL_TOKEN_BYTES + 8) {
          socket.write(headOf({ stream: 1, index: 0, bytes: BYTES }));
          socket.write(Buffer.alloc(BYTES / 2, 7));
        }
      });
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const listener = await listen({
      async *fetch(_requests, { signal }) {
        yield { index: 0, offset: 0, totalBytes: BYTES, data: Buffer.alloc(0), numReady: 1, ...noFrame };
        await new Promise((resolve) => signal.addEventListener('abort', resolve));
      },
      async *openChannel() {
        yield { channel: 5, port, token: 't'.repeat(CHANNEL_TOKEN_BYTES), memory: '' };
      },
    });
    await openChannel(listener.address);
    const reader = new AbortController();
    const reading = fetchFrom(listener.address, () => undefined, { signal: reader.signal });
    await until('half of it has come', () => slotBytes(slab.memory, 0, 256 * BYTES).includes(7));
    reader.abort();
    await assert.rejects(reading);
    await staysSo('the rest of it may still come', () => slab.numInUse === 1);
    await ended;
    await until('no slot is in use', () => slab.numInUse === 0);
    server.close();
    await listener.close(100);
  });

  test('a holder that has given many data channels listens for its end once', async () => {
    const transferThread = { listeners: new Set(), call: () => Promise.resolve(1), notify: () => undefined };
    const { signal } = new AbortController();
    const at = { isShared: false, host: '127.0.0.1', port: 0, newId, clock: systemClock, log: silentLog, signal };
    const host = new ChannelHost({ transferThread: transferThread as unknown as TransferThread, ...at });
    await Promise.all(Array.from({ length: 20 }, () => host.open({ host: '' })));
    assert.equal(getEventListeners(signal, 'abort').length, 1);
  });

  test('what lies ready is on loan until the transfer thread says that it is not read any more', () => {
    const listeners = new Set<(event: TransferThreadEvent) => void>();
    const notified: string[] = [];
    const transferThread = {
      listeners,
      call: () => Promise.resolve(1),
      notify: (method: string) => notified.push(method),
    };
    const { signal } = stopped;
    const at = { isShared: false, host: '127.0.0.1', port: 0, newId, clock: systemClock, log: silentLog, signal };
    const host = new ChannelHost({ transferThread: transferThread as unknown as TransferThread, ...at });
    return host.open({ host: '' }).then(({ channel }) => {
      const stream = host.stream(channel, 1)!;
      assert.equal(host.stream(channel, 1), undefined, 'a stream is one call');
      const released: number[] = [];
      const ready = (index: number, slot: number) => ({
        index,
        slot,
        release: () => {
          released.push(slot);
        },
      });
      stream.offer([ready(0, 10), ready(1, 11), ready(2, 12)], { offset: 0, bytes: 8 });
      for (const listener of listeners) listener({ kind: 'sent', channel, stream: 1, indices: [1] });
      assert.deepEqual(released, [11]);
      stream.end();
      assert.deepEqual(released, [11], 'they may be read');
      for (const listener of listeners) listener({ kind: 'retracted', channel, stream: 1 });
      assert.deepEqual(released, [11, 10, 12]);
      assert.deepEqual(notified, ['offer', 'retract']);
    });
  });

  test('a record is retracted when it is written, or its socket is gone', () => {
    const events: string[] = [];
    let far: SocketListener | undefined;
    const written: (() => void)[] = [];
    let isDestroyed = false;
    const socket: ByteSocket = {
      write: (_parts, onWritten) => {
        if (onWritten) written.push(onWritten);
      },
      destroy: () => {
        isDestroyed = true;
      },
    };
    const sockets = {
      listen: (_host: string, _port: number, onSocket: (socket: ByteSocket) => SocketListener) => {
        far = onSocket(socket);
        return Promise.resolve(1);
      },
    } as unknown as Sockets;
    const served = new ChannelServer(
      sockets,
      systemMemory,
      () => ({ name: '', bytes: () => new Uint8Array(64), offsetOf: () => undefined }),
      (event) => {
        events.push('stream' in event ? `${event.kind} ${event.stream}` : event.kind);
      },
    );
    const hear = (bytes: Buffer): void => {
      for (const byte of bytes) {
        far!.into()[0] = byte;
        far!.onBytes(1);
      }
    };
    served.admit(3, 't'.repeat(CHANNEL_TOKEN_BYTES), '');
    void served.listen('', 0);
    hear(Buffer.from('t'.repeat(CHANNEL_TOKEN_BYTES)));
    for (const stream of [1, 2]) {
      served.offer(3, stream, { indices: [0, 1], slots: [0, 1], offset: 0, bytes: 64 });
      hear(asksOf(stream, [0]));
      served.retract(3, stream);
      hear(asksOf(stream, [1]));
    }
    assert.equal(events.length, 0, 'both are being written');
    written[0]!();
    assert.equal(events.join(), 'sent 1,retracted 1');
    far!.onClosed('');
    assert.equal(events.slice(2).join(), 'retracted 2,left');
    served.retract(3, 4);
    assert.equal(events.at(-1), 'retracted 4', 'of a data channel that is gone');
    assert.equal(isDestroyed, false);
  });
});

describe('memory that both ends share', () => {
  beforeEach(async () => {
    isShared = true;
    [onPlace, onGet, numThroughMemory] = [() => true, () => undefined, 0];
    await restart();
  });
  afterEach(() => {
    isShared = false;
    [onPlace, onGet] = [() => true, () => undefined];
  });

  test('records are read where they lie, whole and in order', async () => {
    for (let i = 0; i < 3; i++) await fetchesAll();
    await isAtRest();
    // The first slot does not begin at a page.
    assert(numThroughMemory >= 2 * NUM_BLOCKS, `${numThroughMemory} of ${3 * NUM_BLOCKS}`);
  });

  test('what cannot be seen there comes over the socket, in order', async () => {
    let numAsked = 0;
    onPlace = () => numAsked++ % 3 !== 0;
    for (let i = 0; i < 3; i++) await fetchesAll();
    await isAtRest();
    assert(numThroughMemory > NUM_BLOCKS && numThroughMemory < numAsked);
  });

  test('K2: a bit that is flipped in it is found', async () => {
    await fetchesAll();
    let numGot = 0;
    onGet = (record) => {
      if (numGot++ === 2) record[record.length - 1]! ^= 1;
    };
    const faults: (string | undefined)[] = [];
    await fetchFrom(holder.address, ({ fault }) => void faults.push(fault));
    assert.deepEqual(
      faults.flatMap((fault) => fault ?? []),
      ['the checksum of layers 2 to 3 differs'],
    );
    await isAtRest();
  });

  test('records are read where they lie by threads of their own, by several streams at once', async () => {
    threads = [];
    onTestFinished(async () => {
      await Promise.all(threads?.map((transferThread) => transferThread.close()) ?? []);
      threads = undefined;
    });
    await restart();
    for (let i = 0; i < 5; i++) await Promise.all([fetchesAll(), fetchesAll(), fetchesAll()]);
    await isAtRest();
    assert(line.moved.memory > 12 * NUM_BLOCKS * BYTES, JSON.stringify(line.moved));
  });

  test('some frames of more blocks than an asker has slots for come in order', async () => {
    const many = chainOf(
      layout.format,
      4,
      Array.from({ length: 4 * 200 }, (_, i) => i),
    );
    assert(many.length > 2 * fetchAheadOf(BYTES));
    const large = await startHolder(many.length, true, { of: many, numSlots: 10 * fetchAheadOf(BYTES) });
    const { frames } = layout.spec;
    const stream = openFetch(line, large.address, {
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
      hashes: many,
      signal: stopped.signal,
      slotBytes: BYTES,
      frames,
      wanted: [1],
      waitMs: 0,
      timeoutMs: PATIENCE_MS,
      patienceMs: 5_000,
    });
    const slots = slotsOf(slab, BYTES, stopped.signal);
    let next = 0;
    for await (const incoming of stream.records(slots)) {
      for (const { index, slot, frame, isLast, fault } of incoming) {
        assert.deepEqual([index, frame, isLast, fault], [next++, 1, true, undefined]);
        slots.release(slot);
      }
    }
    assert.equal(next, many.length);
    await large.close();
  });

  test('an asker of another host is served over the socket', async () => {
    isShared = false;
    await restart();
    await fetchesAll();
    assert.equal(numThroughMemory, 0);
  });
});

test.each([
  ['small records', 1 << 10, 1, 256],
  ['a block of a small model', 100 << 10, 1, 163],
  ['with three others', 100 << 10, 4, 40],
  ['with many', 100 << 10, 1_000, 40],
  ['large ones: some, whatever they take', 4 << 20, 1, 4],
  ['and so with others', 4 << 20, 8, 4],
  ['when nothing goes through sockets', 737 << 10, 0, 22],
])('records asked for ahead of their reader: %s', (_, bytes, numStreams, count) => {
  assert.equal(aheadOf(bytes, numStreams), count);
  assert(count <= fetchAheadOf(bytes));
});

describe('strangers', () => {
  async function portOf(address: string): Promise<{ channel: number; port: number; token: string }> {
    const replies = network.open(
      address,
      'openChannel',
      (async function* () {
        yield { host: '' };
      })(),
      { signal: stopped.signal, timeoutMs: PATIENCE_MS },
    );
    for await (const reply of replies) return reply;
    throw new Error('no answer');
  }

  async function saying(port: number, what: Buffer | string): Promise<{ socket: Socket; heard: Promise<Buffer> }> {
    const socket = connect({ host: '127.0.0.1', port });
    const parts: Buffer[] = [];
    socket.on('data', (part: Buffer) => parts.push(part));
    socket.on('error', () => undefined);
    const closed = new Promise((resolve) => socket.on('close', resolve));
    socket.write(what);
    await once(socket, 'connect');
    return { socket, heard: closed.then(() => Buffer.concat(parts)) };
  }

  test('who has no token is cut off, a token opens one data channel, and asks without end are not kept (P1)', async () => {
    const { port, token } = await portOf(holder.address);
    for (const wrong of [
      'x'.repeat(CHANNEL_TOKEN_BYTES),
      'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n',
      Buffer.alloc(4_096),
    ]) {
      const { heard } = await saying(port, wrong);
      assert.equal((await heard).length, 0);
    }
    const first = await saying(port, token);
    await once(first.socket, 'data');
    const second = await saying(port, token);
    assert.equal((await second.heard).length, 0);
    const asks = Buffer.alloc(8 * 10_000);
    for (let i = 0; i < 10_000; i++) {
      asks.writeUInt32LE(1, 8 * i);
      asks.writeUInt32LE(i, 8 * i + 4);
    }
    first.socket.write(asks);
    assert.equal((await first.heard).length, HEAD_BYTES);
    await fetchesAll();
  });

  test('where data channels are not what they should be, or nobody is there, blocks come over calls', async () => {
    const sent = [
      headOf({ stream: 9, index: 9, bytes: 100 }),
      headOf({ stream: 1, index: 0, bytes: 0xffffffff }),
      Buffer.alloc(64, 7),
    ];
    for (const what of sent) {
      const server = createServer((socket) => {
        socket.on('error', () => undefined);
        socket.write(Buffer.concat([headOf({ stream: 0, index: 0, bytes: 0 }), what]));
      }).listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const listener = await listen({
        fetch: (requests, call) =>
          network.open(holder.address, 'fetch', requests, { signal: call.signal, timeoutMs: PATIENCE_MS }),
        async *openChannel() {
          yield { channel: 77, port, token: 't'.repeat(CHANNEL_TOKEN_BYTES), memory: '' };
        },
      });
      await fetchesAll(listener.address);
      await until('no slot is in use', () => slab.numInUse === 0);
      server.close();
      await listener.close(100);
    }
    // One that takes the connection and says nothing, and one that is not there.
    const silent = createServer((socket) => socket.on('error', () => undefined)).listen(0, '127.0.0.1');
    await once(silent, 'listening');
    for (const port of [(silent.address() as AddressInfo).port, 1]) {
      const listener = await listen({
        fetch: (requests, call) =>
          network.open(holder.address, 'fetch', requests, { signal: call.signal, timeoutMs: PATIENCE_MS }),
        async *openChannel() {
          yield { channel: 1, port, token: 't'.repeat(CHANNEL_TOKEN_BYTES), memory: '' };
        },
      });
      waitsMs = [];
      await fetchesAll(listener.address);
      // Opening goes on after it.
      assert(Math.min(...waitsMs) <= 100, `a fetch waits for a data channel for ${waitsMs.join(' and ')} ms`);
      await listener.close(100);
    }
    silent.close();
  });

  test('a holder that says that records lie ready, and sends none, is given up when patience ends', async () => {
    const sockets: Socket[] = [];
    const server = createServer((socket) => {
      sockets.push(socket);
      socket.on('error', () => undefined);
      socket.on('data', () => undefined);
      socket.write(headOf({ stream: 0, index: 0, bytes: 0 }));
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const listener = await listen({
      async *fetch(_requests, { signal }) {
        // The asker has nothing to wait for at first.
        await turn();
        yield { index: 0, offset: 0, totalBytes: BYTES, data: Buffer.alloc(0), numReady: 3, ...noFrame };
        await aborted(signal);
      },
      async *openChannel() {
        yield { channel: 77, port, token: 't'.repeat(CHANNEL_TOKEN_BYTES), memory: '' };
      },
    });
    await openChannel(listener.address);
    const stream = openFetch(line, listener.address, {
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
      hashes,
      signal: stopped.signal,
      slotBytes: BYTES,
      waitMs: 0,
      timeoutMs: PATIENCE_MS,
      patienceMs: 500,
    });
    await assert.rejects(async () => {
      for await (const incoming of stream.records(slotsOf(slab, BYTES, stopped.signal)))
        assert.fail(`${[...incoming].length} came`);
    }, /nothing for 500 ms/);
    for (const socket of sockets) socket.destroy();
    server.close();
    await until('no slot is in use', () => slab.numInUse === 0);
    await listener.close(100);
  });

  test('those that say nothing are few: the oldest goes when another comes (P1)', async () => {
    const { port, token } = await portOf(holder.address);
    const silent = await Promise.all(Array.from({ length: 100 }, () => saying(port, 'not yet a tok')));
    await Promise.all(silent.slice(0, 30).map(({ heard }) => heard));
    const { socket } = await saying(port, token);
    const [welcome] = (await once(socket, 'data')) as [Buffer];
    assert.equal(welcome.length, HEAD_BYTES);
    for (const { socket: one } of [...silent, { socket }]) one.destroy();
  });

  test('nothing is asked of a stream that is closed: its slots are given back', async () => {
    const notified: string[] = [];
    const listeners = new Set<(event: TransferThreadEvent) => void>();
    const transferThread = {
      listeners,
      notify: (method: string) => notified.push(method),
    } as unknown as TransferThread;
    const channel = new DataChannel(transferThread, systemClock, 1, 1, () => undefined);
    const stream = channel.open(layout.format);
    const ended = stream.close();
    const records = { indices: [0], slots: [0], digests: [hashes[0]!.digest], bytes: BYTES };
    assert.throws(() => {
      stream.ask(records);
    }, Failure);
    channel.dropped(stream.number);
    await ended;
    assert.deepEqual(notified, ['drop']);
    channel.lost('the test ends');
  });
});
