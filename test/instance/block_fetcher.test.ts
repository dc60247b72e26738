/** Blocks that are fetched for a sequence with attention windows, and the result of an incomplete fetch. Budget: 2 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import type { ToEngine } from '../../shared/engine/engine_messages.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { Slab, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { systemMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import { FetchSlots } from '../../shared/instance/fetch_slots.ts';
import { BlockFetcher, type FetchOutcome } from '../../shared/instance/block_fetcher.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { inlineTransferThread } from '../support/inline_transfer_thread.ts';
import { copySource } from '../support/borrowing.ts';
import { playedNetwork } from '../support/played_network.ts';
import { evenSpec } from '../support/kv.ts';
import { PATIENCE_MS } from '../support/until.ts';

const [BLOCK, NUM_BLOCKS] = [4, 20];
const format = '0b'.repeat(16) as Digest;
const shape = { numLayers: 2, blockSize: BLOCK, payloadBytes: 1_024 };
/** A frame a layer. */
const layoutWith = (windows: readonly number[]): RecordLayout => ({
  format,
  numericsClass: 'test',
  spec: evenSpec(shape, { minFrameBytes: 1, windows }),
});
const BYTES = layoutWith([]).spec.slotBytes;
const hashes = chainOf(
  format,
  BLOCK,
  Array.from({ length: BLOCK * NUM_BLOCKS }, (_, i) => i),
);

interface Fetched {
  readonly outcome: FetchOutcome;
  /** Blocks that came into the engine, in order, with the frame when it was one. */
  readonly delivered: readonly string[];
  /** Origins that the engine was told of, in the order of the blocks. */
  readonly origins: readonly string[];
}

type Has = (block: number) => boolean | 'disk' | 'broken' | 'silent';
const all: Has = () => true;
type Fetch = (
  sources: readonly Source[],
  has: Has,
  isPrefill: boolean,
  from?: number,
  pipelinePatienceMs?: number,
) => Promise<Fetched>;
/** Streams that were opened for a fetch. */
let numOpened = 0;

/** From sources, where those blocks are that `has` says; one that is broken breaks its stream. `windows`: of both layers. */
function fetcherOf(windows: readonly number[], clock: Clock = systemClock): Fetch {
  const layout = layoutWith(windows);
  let isThere: Has = all;
  const slab = new Slab(32 * slotLength(BYTES));
  const transferThread = inlineTransferThread(slab, systemMemory);
  const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: () => false });
  const indexOf = (digest: Digest): number => hashes.findIndex((hash) => hash.digest === digest);
  const handlers = createFetchHandlers(
    () => ({
      wanted: new WantedKeys(),
      ...copySource(
        (hash) => {
          const isHeld = isThere(indexOf(hash.digest));
          if (isHeld === 'silent') return new Promise(() => undefined);
          if (isHeld === 'broken') return Promise.reject(new Failure('internal', 'the disk is gone'));
          if (!isHeld) return Promise.resolve(undefined);
          const record = Buffer.alloc(BYTES, 7);
          sealRecord(record, layout, hash);
          return Promise.resolve(record);
        },
        (hash) => isThere(indexOf(hash.digest)) === 'disk',
      ),
      snapshot: () => assert.fail('nobody asks'),
    }),
    { maxStreams: 8 },
  );
  const played = playedNetwork({ fetch: handlers.fetch });
  const network: typeof played = {
    ...played,
    open: (...call) => {
      numOpened++;
      return played.open(...call);
    },
  };
  let delivered: string[] = [];
  let origins: string[] = [];
  const fetchSlots = new FetchSlots(cache, BYTES, 8);
  const fetcher = new BlockFetcher({
    line: {
      network,
      transferThread,
      channels: undefined,
      moved: nothingMoved(),
      clock,
      random: new Random(1),
    },

    slab,
    layout,
    fetchSlots,
    ownAddress: 'me',
    isStore: (address) => address.startsWith('store'),
    log: silentLog,
    outbox: undefined as never,
    sendToEngine: (message: ToEngine) => {
      if (message.kind === 'arrived') {
        delivered.push(`all of ${message.start} to ${message.end}`);
        return;
      }
      assert(message.kind === 'deliver');
      origins.push(message.origin);
      delivered.push(message.frame === undefined ? `${message.blockIndex}` : `${message.blockIndex}.${message.frame}`);
      fetchSlots.release(message.slot);
    },
  });
  return async (sources, has, isPrefill, from = 0, pipelinePatienceMs?: number) => {
    [isThere, delivered, origins, numOpened] = [has, [], [], 0];
    const outcome = await fetcher.run({
      id: 1,
      hashes,
      from,
      sources,
      hasOtherSources: !isPrefill,
      timeoutMs: PATIENCE_MS,
      isAdmitted: () => true,
      pipelinePatienceMs,
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
      signal: new AbortController().signal,
    });
    assert.equal(fetchSlots.numInUse, 0, 'every slot came back');
    return { outcome, delivered, origins };
  };
}

const range = (start: number, end: number): string[] => Array.from({ length: end - start }, (_, i) => `${start + i}`);
const source = (start: number, end: number): Source => ({ address: 'a:1', start, end, isComputing: false });

test('where every layer has a window, blocks that none sees are asked of nobody', async () => {
  const fetch = fetcherOf([10, 7]);
  // The row after block 15 sees 10 tokens: two blocks and a half.
  const { outcome, delivered } = await fetch([source(0, 9), source(9, 16)], all, false);
  expect(outcome).toMatchObject({ reached: 16, fetchedBytes: 3 * BYTES });
  expect(delivered).toEqual(range(13, 16));
});

test('each holder has a link of its own, with the bytes after its first answer', async () => {
  const [first, second] = [source(0, 8), { ...source(8, 20), address: 'b:1' }];
  // A clock on which only reading it takes time: on a slow machine a call is read too late for its latency to be measured.
  let numReadings = 0;
  const clock: Clock = { ...systemClock, nowMs: () => numReadings++ / 1_024 };
  const { links } = (await fetcherOf([], clock)([first, second], all, false)).outcome;
  expect(links.map(({ address, way, bytes }) => [address, way, bytes])).toEqual([
    ['a:1', 'call', 7 * BYTES],
    ['b:1', 'call', 11 * BYTES],
  ]);
  expect(links[0]!.latencyMs).toBeGreaterThan(0);
  for (const { movingMs } of links) expect(movingMs).toBeGreaterThan(0);
  // A record that its holder may have computed meanwhile shows nothing, when it comes in one slice.
  const computing = await fetcherOf([])([{ ...source(0, 20), isComputing: true }], all, false);
  expect(computing.outcome).toMatchObject({ reached: 20, fetchedBytes: 20 * BYTES, links: [] });
});

test('each block says where it comes from: a store’s DRAM or disk, another instance, or a prefill of the request', async () => {
  const sources = [
    { ...source(0, 3), address: 'store:1' },
    { ...source(3, 5), address: 'a:1', isComputing: true },
    { ...source(5, 8), address: 'b:1', isComputing: true, isHandoff: true },
  ];
  const { origins } = await fetcherOf([])(sources, (block) => (block === 1 ? 'disk' : true), false);
  const expected = ['storeDram', 'storeDisk', 'storeDram', 'instance', 'instance', 'handoff', 'handoff', 'handoff'];
  expect(origins).toEqual(expected);
});

test('where some see all, blocks before the window come too, from where they begin to be missing', async () => {
  const { outcome, delivered } = await fetcherOf([0, 6])([source(0, 12)], all, false, 3);
  expect(outcome.reached).toBe(12);
  // Over a call they come whole.
  expect(delivered).toEqual(range(3, 12));
});

test('without windows, what came before the end is used', async () => {
  const { outcome, delivered } = await fetcherOf([0, 0])([source(0, 20)], (block) => block < 7, true);
  expect(outcome).toMatchObject({ reached: 7, fetchedBytes: 7 * BYTES });
  expect(delivered).toEqual(range(0, 7));
});

test('a prefill’s fetch that comes short is made again for what the rows before the missing block see', async () => {
  const { outcome, delivered } = await fetcherOf([10, 7])([source(0, 20)], (block) => block < 19, true);
  expect(outcome).toMatchObject({ reached: 19, fetchedBytes: (2 + 3) * BYTES });
  expect(delivered).toEqual([...range(17, 19), ...range(16, 19)]);
});

test('then for whole blocks, as far as there are any', async () => {
  const { outcome, delivered } = await fetcherOf([10, 7])([source(0, 20)], (block) => block < 5, true);
  expect(outcome).toMatchObject({ reached: 5, fetchedBytes: 5 * BYTES });
  expect(delivered).toEqual(range(0, 5));
});

test('who broke is not waited for again', async () => {
  const [first, second] = [source(0, 8), { ...source(8, 20), address: 'b:1' }];
  const has: Has = (block) => (block === 18 ? 'broken' : true);
  const { outcome, delivered } = await fetcherOf([10, 7])([first, second], has, true);
  expect(outcome).toMatchObject({ reached: 8, fetchedBytes: (1 + 3) * BYTES });
  expect(delivered).toEqual([...range(17, 18), ...range(5, 8)]);
  const alone = await fetcherOf([10, 7])([source(0, 20)], has, true);
  expect(alone.outcome).toMatchObject({ reached: 0, reason: 'the disk is gone' });
});

test('a decode is told of other sources, and hears that nothing of it can be used', async () => {
  const { outcome, delivered } = await fetcherOf([10, 7])([source(0, 20)], (block) => block < 19, false, 2);
  expect(outcome).toMatchObject({ reached: 2, fetchedBytes: 2 * BYTES });
  expect(delivered).toEqual(range(17, 19));
});

test('what a prefill left out and is to fetch again comes whole, and serves others then', async () => {
  const fetch = fetcherOf([10, 7]);
  expect((await fetch([source(0, 12)], all, true)).delivered).toEqual(range(9, 12));
  // A longer prompt that begins so: what nobody sees of what is new in it is left out.
  const again = await fetch([source(0, 20)], all, true);
  expect(again.delivered).toEqual([...range(0, 9), ...range(17, 20)]);
  expect(again.outcome).toMatchObject({ reached: 20, fetchedBytes: 12 * BYTES });
  // A decode leaves it out every time.
  expect((await fetch([source(0, 20)], all, false)).delivered).toEqual(range(17, 20));
});

test('in a pipeline ranges come in order, each is told of when it has come, and few streams are open', async () => {
  const ranges = [0, 4, 8, 12, 16].map((start) => ({ ...source(start, start + 2), isComputing: true }));
  // Attention windows leave nothing out: rows after each range see other blocks.
  const fetch = fetcherOf([10, 7]);
  const { outcome, delivered } = await fetch([...ranges].reverse(), all, true, 5, 5_000);
  expect(outcome).toMatchObject({ reached: 18, fetchedBytes: 7 * BYTES });
  const ends = [6, 10, 14, 18];
  expect(delivered).toEqual(
    ends.flatMap((end) => {
      const start = Math.max(5, end - 2);
      return [...range(start, end), `all of ${start} to ${end}`];
    }),
  );
  const many = Array.from({ length: 10 }, (_, i) => source(2 * i, 2 * i + 1));
  await fetch(many, (block) => (block === 0 ? 'silent' : true), true, 0, 50);
  expect(numOpened).toBe(4);
  await fetch(many, all, true, 0, 5_000);
  expect(numOpened).toBe(10);
});

test('in a pipeline a source that lacks a block, breaks or says nothing ends the fetch', async () => {
  const ranges = [source(0, 3), { ...source(6, 9), isComputing: true }, source(12, 15)];
  for (const [what, reason] of [
    [false, 'a:1 has no block 7'],
    ['broken', 'the disk is gone'],
    ['silent', 'a:1 sent nothing for 50 ms'],
  ] as const) {
    const has: Has = (block) => (block === 7 ? what : true);
    const { outcome, delivered } = await fetcherOf([])(ranges, has, true, 0, 50);
    expect(outcome).toMatchObject({ reached: 7, fetchedBytes: 4 * BYTES, reason });
    expect(delivered).toEqual([...range(0, 3), 'all of 0 to 3', '6']);
  }
});
