/** What is fetched for a sequence whose layers see windows, and what becomes of a fetch that comes short. Budget: 2 s. */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import type { ToEngine } from '../../shared/engine/engine_messages.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { framesOf, narrowFrames, recordBytes, sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { Slab, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { frameWindows } from '../../shared/kv/windows.ts';
import { nothingMoved } from '../../shared/net/fetch_client.ts';
import { createFetchHandlers } from '../../shared/net/fetch_server.ts';
import { systemMemory } from '../../shared/net/mover/host_memory.ts';
import { ArrivalWindow } from '../../shared/node/arrival_window.ts';
import { BlockFetcher, type FetchOutcome } from '../../shared/node/block_fetcher.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { inlineMover } from '../support/inline_mover.ts';
import { lendingCopies } from '../support/lending.ts';
import { playedNetwork } from '../support/played_network.ts';

const [BLOCK, NUM_BLOCKS] = [4, 20];
const layout: RecordLayout = {
  ...{ format: '0b'.repeat(16) as Digest, numericsClass: 'test', numLayers: 2, blockSize: BLOCK, payloadBytes: 1_024 },
};
const BYTES = recordBytes(layout);
const hashes = chainOf(
  layout.format,
  BLOCK,
  Array.from({ length: BLOCK * NUM_BLOCKS }, (_, i) => i),
);

beforeAll(() => {
  narrowFrames(1);
});
afterAll(() => {
  narrowFrames(64 << 10);
});

interface Fetched {
  readonly outcome: FetchOutcome;
  /** Blocks that came into the engine, in order, with the frame when it was one. */
  readonly delivered: readonly string[];
}

/** From `sources`, where those blocks are that `has` says; `windows`: of both layers. */
async function fetched(
  windows: readonly number[],
  sources: readonly Source[],
  has: (block: number) => boolean,
  isOnlyTry: boolean,
  from = 0,
): Promise<Fetched> {
  const slab = new Slab(32 * slotLength(BYTES));
  const mover = inlineMover(slab, systemMemory);
  const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: () => false });
  const indexOf = (digest: Digest): number => hashes.findIndex((hash) => hash.digest === digest);
  const handlers = createFetchHandlers(
    () => ({
      wanted: new WantedKeys(),
      ...lendingCopies((hash) => {
        if (!has(indexOf(hash.digest))) return Promise.resolve(undefined);
        const record = Buffer.alloc(BYTES, 7);
        sealRecord(record, layout, hash);
        return Promise.resolve(record);
      }),
      snapshot: () => assert.fail('nobody asks'),
    }),
    { maxStreams: 8 },
  );
  const network = playedNetwork({ fetch: handlers.fetch });
  const delivered: string[] = [];
  const window = new ArrivalWindow(cache, BYTES, 8);
  const fetcher = new BlockFetcher({
    line: {
      ...{ network, mover, lanes: undefined, moved: nothingMoved(), clock: systemClock, random: new Random(1) },
    },
    ...{ slab, layout, window, ownAddress: 'me', log: silentLog, outbox: undefined as never },
    windows: frameWindows(framesOf(layout), windows),
    sendToEngine: (message: ToEngine) => {
      assert(message.kind === 'deliver');
      delivered.push(message.frame === undefined ? `${message.blockIndex}` : `${message.blockIndex}.${message.frame}`);
      window.give(message.slot);
    },
  });
  const outcome = await fetcher.run({
    ...{ id: 1, hashes, from, sources, isOnlyTry, timeoutMs: 5_000, isAdmitted: () => true },
    context: { requestId: 'r', tenant: '', priority: 0, timeoutMs: 5_000, traceId: '', router: '', placement: 0 },
    signal: new AbortController().signal,
  });
  assert.equal(window.numInUse, 0, 'every slot came back');
  return { outcome, delivered };
}

const range = (start: number, end: number): string[] => Array.from({ length: end - start }, (_, i) => `${start + i}`);
const all = (): boolean => true;
const source = (start: number, end: number): Source => ({ address: 'a:1', start, end, isComputing: false });

test('where every layer has a window, blocks that none sees are asked of nobody', async () => {
  // The row after block 15 sees 10 tokens: two blocks and a half.
  const { outcome, delivered } = await fetched([10, 7], [source(0, 9), source(9, 16)], all, true);
  expect(outcome).toMatchObject({ reached: 16, fetchedBytes: 3 * BYTES });
  expect(delivered).toEqual(range(13, 16));
});

test('where some see all, blocks before the window come too, from where they begin to be missing', async () => {
  const { outcome, delivered } = await fetched([0, 6], [source(0, 12)], all, false, 3);
  expect(outcome.reached).toBe(12);
  // Over a call they come whole.
  expect(delivered).toEqual(range(3, 12));
});

test('without windows, what came before the end is used', async () => {
  const { outcome, delivered } = await fetched([0, 0], [source(0, 20)], (block) => block < 7, true);
  expect(outcome).toMatchObject({ reached: 7, fetchedBytes: 7 * BYTES });
  expect(delivered).toEqual(range(0, 7));
});

test('with windows, a fetch that comes short is made again for all there is, by who asks nobody else', async () => {
  const { outcome, delivered } = await fetched([10, 7], [source(0, 20)], (block) => block < 19, true);
  expect(outcome).toMatchObject({ reached: 19, fetchedBytes: (2 + 19) * BYTES });
  expect(delivered).toEqual([...range(17, 19), ...range(0, 19)]);
});

test('who is told of other sources hears that nothing of it can be used', async () => {
  const { outcome, delivered } = await fetched([10, 7], [source(0, 20)], (block) => block < 19, false, 2);
  expect(outcome).toMatchObject({ reached: 2, fetchedBytes: 2 * BYTES });
  expect(delivered).toEqual(range(17, 19));
});
