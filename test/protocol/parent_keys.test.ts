/** Parents of blocks on the wire: what they cost, and what routers of earlier versions make of them. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { Random } from '../../shared/base/random.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { chainOf, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import { snapshotPages } from '../../shared/net/fetch/snapshot_pages.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import { decodeBlockBatch, encodeBlockBatch, type BlockRun } from '../../shared/protocol/block_events.ts';
import { keyWords, unpackKeyWords } from '../../shared/protocol/packing.ts';
import { packParents, unpackParents } from '../../shared/protocol/parent_keys.ts';

const root = 'ab'.repeat(16) as Digest;
const chain = chainOf(
  root,
  4,
  Array.from({ length: 4 * 64 }, (_, i) => i),
);
const keysOf = (words: Int32Array): bigint[] => [...new BigUint64Array(words.slice().buffer)];
const isInvalid = (error: unknown): boolean => error instanceof Failure && error.code === 'invalid_request';

function announcing(): { announcer: Announcer; batches: Buffer[] } {
  const batches: Buffer[] = [];
  const announcer = new Announcer('h/e', (batch) => batches.push(batch), systemClock, new AbortController().signal);
  return { announcer, batches };
}

test('parents come back as they were, of chains and of blocks in any order, known or not', () => {
  const random = new Random(40);
  for (let i = 0; i < 500; i++) {
    const keys: bigint[] = [];
    const parents: bigint[] = [];
    let parent = 0n;
    for (let n = random.below(40); n > 0; n--) {
      if (random.chance(1, 1 + (i % 9))) parent = random.chance(1, 3) ? 0n : (BigInt(random.u32()) << 32n) | 1n;
      parents.push(parent);
      keys.push((parent = (BigInt(random.u32()) << 32n) | BigInt(random.u32())));
    }
    const [keyList, parentList] = [keyWords(keys as BlockKey[]), keyWords(parents as BlockKey[])];
    const bytes = packParents(keyList, parentList);
    assert(bytes.length <= 8 * keys.length);
    assert.deepEqual(unpackParents(keyList, bytes), keys.length === 0 ? undefined : parentList);
  }
});

test('blocks that follow each other cost 22 bytes a run for their parents, not 8 each', () => {
  const keys = keyWords(chain.map(({ key }) => key));
  const parents = keyWords(chain.map(({ parent }) => parent));
  const of = (run: Partial<BlockRun>): number =>
    encodeBlockBatch({ holder: 'h', sequence: 1, runs: [{ operation: 'stored', tier: 'dram', keys, ...run }] }).length;
  assert.equal(of({ parents }) - of({}), 6 + 16);
});

test('bytes that fit no run are refused', () => {
  const keys = keyWords(chain.slice(0, 8).map(({ key }) => key));
  const position = (at: bigint): Buffer => Buffer.from(BigUint64Array.of(at, 0n).buffer);
  assert(unpackParents(keys, position(7n)));
  for (const bytes of [position(8n), position(2n ** 32n), position(2n ** 31n), Buffer.alloc(8), Buffer.alloc(80)])
    assert.throws(() => unpackParents(keys, bytes), isInvalid);
  const batch = { holder: 'h', sequence: 1, runs: [{ operation: 'stored' as const, tier: 'dram' as const, keys }] };
  const twice = Buffer.concat([encodeBlockBatch(batch), Buffer.from([2, 0, 0, 0, 0, 0])]);
  assert.throws(() => decodeBlockBatch(twice), isInvalid);
});

test('a router of an earlier version takes parents for removals, which name no block of the batch', () => {
  const { announcer, batches } = announcing();
  for (const hash of [...chain.slice(8), ...chain.slice(2, 5)]) announcer.stored('device', hash);
  announcer.stored('disk', chain[1]!);
  announcer.flush();
  const [batch] = batches;
  assert(batch);
  const [stored, removed]: [bigint[], bigint[]] = [[], []];
  // That version took every operation other than 1 for a removal.
  for (let at = 4 + batch.readUInt32LE() + 8; at < batch.length;) {
    const end = at + 6 + 8 * batch.readUInt32LE(at + 2);
    (batch[at] === 1 ? stored : removed).push(...keysOf(unpackKeyWords(batch.subarray(at + 6, end))));
    at = end;
  }
  const names = new Set(chain.flatMap(({ key, parent }) => [key as bigint, parent as bigint]));
  assert.equal(stored.length, 56 + 3 + 1);
  assert(removed.length > 0 && removed.every((key) => !names.has(key)));
});

test('events and snapshots of a holder have the parent of each of its blocks', () => {
  const { announcer, batches } = announcing();
  const known = chain.slice(0, 40);
  for (const hash of known) announcer.stored('device', hash);
  for (const hash of known.filter((_, i) => i % 3 === 0).reverse()) announcer.stored('disk', { ...hash });
  announcer.stored('disk', { key: 7n as BlockKey, parent: 0n as BlockKey });
  announcer.removed('device', known[39]!.key);
  const { tiers } = announcer.snapshot();
  const parents = new Map<bigint, bigint>([...chain.map(({ key, parent }) => [key, parent] as const), [7n, 0n]]);
  const expectRight = (keys: Int32Array, own: Int32Array | undefined): number => {
    assert(own);
    assert.deepEqual(
      keysOf(own),
      keysOf(keys).map((key) => parents.get(key)),
    );
    return keys.length / 2;
  };
  const runs = batches.flatMap((batch) => decodeBlockBatch(batch).runs);
  assert.deepEqual(
    runs.map(({ operation, tier, keys, parents: own }) => [
      operation,
      tier,
      operation === 'stored' ? expectRight(keys, own) : own,
    ]),
    [
      ['stored', 'device', 40],
      ['stored', 'disk', 15],
      ['removed', 'device', undefined],
    ],
  );
  const source = { snapshot: () => ({ epoch: 'e', sequence: 1, tiers }) } as unknown as BlockSource;
  const pages = [...snapshotPages(source)].map((page) => {
    const keys = unpackKeyWords(page.keys);
    return [page.tier, expectRight(keys, unpackParents(keys, page.parents))];
  });
  assert.deepEqual(pages, [
    [0, 39],
    [2, 15],
  ]);
});

test('a snapshot of more than a page has all blocks once, and a holder without blocks has one page', () => {
  const count = 40_000;
  const blocks = new Map<BlockKey, BlockKey>();
  for (let i = 1n; i <= count; i++) blocks.set(i as BlockKey, (i - 1n) as BlockKey);
  const sourceOf = (tiers: unknown): BlockSource =>
    ({ snapshot: () => ({ epoch: 'e', sequence: 1, tiers }) }) as unknown as BlockSource;
  const pages = [...snapshotPages(sourceOf(new Map([['dram', blocks]])))];
  const keys = pages.flatMap((page) => keysOf(unpackKeyWords(page.keys)));
  assert.deepEqual([pages.length, keys.length, new Set(keys).size], [3, count, count]);
  for (const page of pages) assert(page.parents.length <= 16);
  assert.equal([...snapshotPages(sourceOf(new Map([['dram', new Map()]])))].length, 1);
});
