/**
 * Tests that every way for records must pass: shared memory, socket, call. Real TCP and gRPC, transfer threads in this thread. Budget:
 * 20 s.
 */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { openFetch, type FetchLine } from '../../shared/net/fetch/fetch.ts';
import { createFetchHandlers, type FetchServerCounters } from '../../shared/net/fetch/fetch_server.ts';
import { FetchFlows } from '../../shared/net/fetch/flows.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { fetchAheadOf } from '../../shared/net/fetch/transfer_bounds.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ChannelHost } from '../../shared/net/channel_host.ts';
import { DataChannels } from '../../shared/net/data_channels.ts';
import { systemMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import { inlineTransferThread } from '../support/inline_transfer_thread.ts';
import { evenSpec } from '../support/kv.ts';
import { cacheSource } from '../support/borrowing.ts';
import { slotsOf } from '../support/slab_slots.ts';
import { PATIENCE_MS, staysSo, until } from '../support/until.ts';

const layout: RecordLayout = {
  format: 'cd'.repeat(16) as Digest,
  numericsClass: 'none',
  spec: evenSpec({ numLayers: 4, blockSize: 4, payloadBytes: 100_000 }),
};
const BYTES = layout.spec.slotBytes;
const NUM_BLOCKS = 60;
const hashes = chainOf(
  layout.format,
  4,
  Array.from({ length: 4 * NUM_BLOCKS }, (_, i) => i),
);

/** Blocks that the holder says it had to read from its disk: one in three. */
const isFromDisk = ({ digest }: BlockHash): boolean => hashes.findIndex((hash) => hash.digest === digest) % 3 === 0;

describe.each(['memory', 'socket', 'call'] as const)('records that come by %s', (way) => {
  const never = new AbortController().signal;
  let stopped: AbortController;
  let network: GrpcNetwork;
  let slab: Slab;
  let line: FetchLine;
  let numFromDisk: number;
  let holder: {
    slab: Slab;
    cache: RecordCache;
    address: string;
    counters: FetchServerCounters;
    close(): Promise<void>;
  };

  async function pin(): Promise<typeof holder> {
    const own = new Slab(NUM_BLOCKS * slotLength(BYTES));
    const transferThread = inlineTransferThread(own, systemMemory);
    const wanted = new WantedKeys();
    const cache = new RecordCache(own, { onEvict: () => undefined, isWanted: (key) => wanted.has(key) });
    for (const [i, hash] of hashes.entries()) {
      const slot = cache.acquireSlot(BYTES)!;
      slotBytes(own.memory, slot, BYTES).fill(i);
      sealRecord(slotBytes(own.memory, slot, BYTES), layout, hash);
      cache.put({ hash, slot, bytes: BYTES, format: layout.format });
    }
    const channels = new ChannelHost({
      transferThread,
      isShared: way === 'memory',
      host: '127.0.0.1',
      port: 0,
      newId,
      clock: systemClock,
      log: silentLog,
      signal: stopped.signal,
    });
    const { counters, ...handlers } = createFetchHandlers(() => cacheSource(cache, wanted, isFromDisk), {
      maxStreams: 64,
      channels,
    });
    const listener = await network.listen('127.0.0.1:0', handlers);
    return { slab: own, cache, address: listener.address, counters, close: () => listener.close(0) };
  }

  beforeEach(async () => {
    stopped = new AbortController();
    numFromDisk = 0;
    network = new GrpcNetwork('', systemClock);
    slab = new Slab(256 * slotLength(BYTES));
    const transferThread = inlineTransferThread(slab, systemMemory);
    const options = { network, transferThread, clock: systemClock, log: silentLog, signal: stopped.signal };
    const channels = way === 'call' ? undefined : new DataChannels({ ...options, isShared: way === 'memory' });
    const counters = { moved: nothingMoved(), flows: new FetchFlows() };
    line = { network, transferThread, channels, ...counters, clock: systemClock, random: new Random(1) };
    holder = await pin();
  });
  afterEach(async () => {
    stopped.abort();
    network.close();
    await holder.close();
  });

  /** Reads until `each` says that it has enough. @returns of what came, its fault. */
  async function fetch(
    each: (count: number) => boolean | Promise<boolean> = () => false,
    { size = BYTES, run = hashes }: { size?: number; run?: typeof hashes } = {},
  ): Promise<(string | undefined)[]> {
    const context = {
      requestId: 'r',
      tenant: '',
      priority: 0,
      traceId: '',
      router: '',
      placement: 0,
      expectedTokens: 0,
    };
    const stream = openFetch(line, holder.address, {
      context: { ...context, timeoutMs: PATIENCE_MS },
      format: layout.format,
      hashes: run,
      slotBytes: size,
      signal: never,
      waitMs: 0,
      timeoutMs: PATIENCE_MS,
      patienceMs: undefined,
    });
    const slots = slotsOf(slab, size, never);
    const faults: (string | undefined)[] = [];
    for await (const incoming of stream.records(slots)) {
      for (const { index, slot, frame, isLast, fault, ...arrived } of incoming) {
        if (arrived.isFromDisk) numFromDisk++;
        assert.deepEqual([index, frame, isLast], [faults.length, undefined, true]);
        const record = slotBytes(slab.memory, slot, BYTES);
        const payload = record.subarray(layout.spec.preambleBytes);
        if (fault === undefined) assert(payload.every((value) => value === index));
        faults.push(fault);
        slots.release(slot);
        if (await each(faults.length)) return faults;
      }
    }
    return faults;
  }

  const numFailures = (): number => line.flows!.report().reduce((sum, { failures }) => sum + failures, 0);

  const isAllGiven = (): boolean => slab.numInUse === 0;

  test('all of them come, in order, whole, and are counted', async () => {
    // Records that come before a data channel's memory is open use its socket, and a second data channel may be opened.
    for (let i = 0; i < 4; i++)
      assert.deepEqual(
        await fetch(),
        Array.from({ length: NUM_BLOCKS }, () => undefined),
      );
    const { memory, socket, call } = line.moved;
    assert.equal(memory + socket + call, 4 * NUM_BLOCKS * BYTES);
    assert(line.moved[way] > 2 * NUM_BLOCKS * BYTES, JSON.stringify(line.moved));
    assert.equal(numFromDisk, (4 * NUM_BLOCKS) / 3);
    const flows = line.flows!.report();
    for (const { from, way: by, bytes, ms, failures } of flows) {
      assert.deepEqual([from, bytes, failures], [holder.address, line.moved[by as typeof way], 0]);
      // Over the call a slice that came while nobody read shows no time.
      if (by === way && way !== 'call') assert(ms > 0);
    }
    assert.equal(
      flows.reduce((sum, { records }) => sum + records, 0),
      4 * NUM_BLOCKS,
    );
    await until('every slot is given back', isAllGiven);
  });

  test('one that is damaged has a fault, and the others come (K2)', async () => {
    const borrowed = holder.cache.borrowInPlace(hashes[7]!)!;
    borrowed.record[BYTES - 1]! ^= 1;
    borrowed.release();
    const faults = await fetch();
    assert.match(faults[7] ?? '', /checksum/);
    assert.equal(faults.filter((fault) => fault === undefined).length, NUM_BLOCKS - 1);
    assert.equal(numFailures(), 1);
  });

  test.each([-256, 256])(
    'records of another size than was asked for (%i bytes) are not believed (K2)',
    async (more) => {
      await assert.rejects(fetch(undefined, { size: BYTES + more }), /not the next one/);
      await until('every slot is given back', isAllGiven);
      assert.equal(numFailures(), 1);
    },
  );

  test('a run ends at the first block that its holder has not', async () => {
    const first = hashes[0]!;
    const missing = { ...first, key: (first.key + 1n) as typeof first.key };
    assert.equal((await fetch(undefined, { run: [...hashes.slice(0, 5), missing, ...hashes.slice(5)] })).length, 5);
  });

  test('a reader that stops has no more than a window of slots (P1)', async () => {
    let most = 0;
    await fetch(async (count) => {
      if (count === 3) await staysSo('its window', () => slab.numInUse <= fetchAheadOf(BYTES));
      most = Math.max(most, slab.numInUse);
      return false;
    });
    assert(most > 1 && most <= fetchAheadOf(BYTES), `${most} slots were in use`);
  });

  test('a reader that leaves: every slot is given back, and its holder serves no stream (R2)', async () => {
    await fetch((count) => count === 5);
    await until('every slot is given back', isAllGiven);
    await until('no stream is open', () => holder.counters.openStreams === 0);
    assert.equal((await fetch()).length, NUM_BLOCKS, 'the next one has all of them');
  });

  test('a holder that goes: what came was whole, and every slot is given back', async () => {
    const left = fetch(async (count) => {
      if (count === 3) await holder.close();
      return false;
    });
    await left.catch(() => undefined);
    await until('every slot is given back', isAllGiven);
  });
});
