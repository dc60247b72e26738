/** The prefix tree: what it is made of against a naive model, its runs, and 100,000 blocks without holding up other work. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Random } from '../../../shared/base/random.ts';
import type { Tier } from '../../../shared/protocol/block_events.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { BlockTree } from '../../../services/router/observe/block_tree.ts';
import type { BlockRunView } from '../../../shared/protocol/router_api.ts';
import { TreeShape, type TreeQuery, type TreeRuns } from '../../../services/router/observe/tree_shape.ts';

const ALL: TreeQuery = { root: undefined, depth: Infinity, limit: 5_000 };
const NOW_S = 1_700_000_000;

/** An index and a tree that hear the same events. */
class Blocks {
  readonly index = new PrefixIndex(200_000);
  readonly tree: BlockTree;

  constructor(maxBlocks = 200_000) {
    this.tree = new BlockTree(100_000, maxBlocks);
  }

  stored(holder: string, chain: readonly number[], tier: Tier = 'device', parent = 0): void {
    const keys = wordsOf(chain);
    this.index.apply(holder, { operation: 'stored', tier, keys });
    this.tree.add(keys, wordsOf([parent, ...chain.slice(0, -1)]), NOW_S);
  }

  removed(holder: string, chain: readonly number[], tier: Tier = 'device'): void {
    this.index.apply(holder, { operation: 'removed', tier, keys: wordsOf(chain) });
  }

  async runs(query: Partial<TreeQuery> = {}): Promise<TreeRuns | undefined> {
    const shape = await TreeShape.of(this.tree, this.index, systemClock);
    return shape.runs({ ...ALL, ...query }, (holder) => holder.slice(0, holder.indexOf('/')));
  }
}

/** Keys as words: the key is the low word, unless it is 0; keys of tests are at least 1. */
function wordsOf(keys: readonly number[]): Int32Array {
  return Int32Array.from(keys.flatMap((key) => (key === 0 ? [0, 0] : [key, 9])));
}

const hexOf = (key: number): string => `00000009${key.toString(16).padStart(8, '0')}`;

test('chains of blocks with one child and the same holders are one run; the largest subtree comes first', async () => {
  const blocks = new Blocks();
  // 1 to 4, then 5, 6 and 7 to 10; 20 and 21 are another prompt.
  blocks.stored('a/e', [1, 2, 3, 4]);
  blocks.stored('b/e', [1, 2, 3, 4], 'dram');
  blocks.stored('a/e', [5, 6], 'device', 4);
  blocks.stored('b/e', [7, 8, 9, 10], 'disk', 4);
  blocks.stored('a/e', [20, 21], 'device', 77);
  const found = await blocks.runs();
  const used_at = 1_000 * NOW_S;
  assert.deepEqual(found, {
    holders: ['a', 'b'],
    isTruncated: false,
    runs: [
      {
        key: hexOf(1),
        parent: null,
        depth: 0,
        length: 4,
        blocks: 10,
        children: 2,
        used_at,
        held_by: [
          [0, ['device']],
          [1, ['dram']],
        ],
      },
      {
        key: hexOf(7),
        parent: hexOf(1),
        depth: 4,
        length: 4,
        blocks: 4,
        children: 0,
        held_by: [[1, ['disk']]],
        used_at,
      },
      {
        key: hexOf(5),
        parent: hexOf(1),
        depth: 4,
        length: 2,
        blocks: 2,
        children: 0,
        held_by: [[0, ['device']]],
        used_at,
      },
      {
        key: hexOf(20),
        parent: null,
        depth: 0,
        length: 2,
        blocks: 2,
        children: 0,
        held_by: [[0, ['device']]],
        used_at,
      },
    ],
  });
  const below = await blocks.runs({ root: hexOf(3) });
  assert.deepEqual(
    below?.runs.map(({ key, parent, depth, length }) => [key, parent, depth, length]),
    [
      [hexOf(3), null, 2, 2],
      [hexOf(7), hexOf(3), 4, 4],
      [hexOf(5), hexOf(3), 4, 2],
    ],
  );
  assert.equal(await blocks.runs({ root: hexOf(99) }), undefined);
  const shallow = await blocks.runs({ depth: 1 });
  assert.deepEqual([shallow?.runs.length, shallow?.isTruncated], [2, true]);
  const few = await blocks.runs({ limit: 2 });
  assert.deepEqual([few?.runs.map(({ key }) => key), few?.isTruncated], [[hexOf(1), hexOf(7)], true]);
});

test('a block whose parent nobody holds begins a tree of its own, and comes back under the parent', async () => {
  const blocks = new Blocks();
  blocks.stored('a/e', [1, 2, 3]);
  blocks.removed('a/e', [2]);
  const parents = async (): Promise<unknown> => (await blocks.runs())?.runs.map(({ key, parent }) => [key, parent]);
  assert.deepEqual(await parents(), [
    [hexOf(1), null],
    [hexOf(3), null],
  ]);
  blocks.stored('b/e', [2], 'device', 1);
  assert.deepEqual(await parents(), [
    [hexOf(1), null],
    [hexOf(2), hexOf(1)],
    [hexOf(3), hexOf(2)],
  ]);
});

test('the newest use of a run is shown; blocks of which none is known have none', async () => {
  const blocks = new Blocks();
  blocks.index.apply('a/e', { operation: 'stored', tier: 'device', keys: wordsOf([1, 2]) });
  blocks.tree.add(wordsOf([1, 2]), wordsOf([0, 1]), 0);
  assert.equal((await blocks.runs())?.runs[0]?.used_at, null);
  blocks.tree.use(wordsOf([2, 5]), NOW_S + 7);
  assert.equal((await blocks.runs())?.runs[0]?.used_at, 1_000 * (NOW_S + 7));
});

test('keys whose parents form a circle end nothing, and blocks beyond the room are missing and said to be', async () => {
  const blocks = new Blocks(10);
  const keys = wordsOf([1, 2]);
  blocks.index.apply('a/e', { operation: 'stored', tier: 'device', keys });
  blocks.tree.add(keys, wordsOf([2, 1]), 0);
  assert.deepEqual((await blocks.runs())?.runs, []);
  blocks.stored(
    'a/e',
    Array.from({ length: 20 }, (_, i) => 100 + i),
  );
  assert.equal(blocks.tree.isTruncated, true);
  assert.equal((await blocks.runs())?.runs[0]?.blocks, 8);
});

test('runs hold every block once, under its parent, with its holders, against a naive model', async () => {
  const random = new Random(20);
  const blocks = new Blocks();
  const parentOf = new Map<number, number>();
  const heldBy = new Map<number, Set<string>>();
  for (let key = 1; key <= 400; key++)
    parentOf.set(key, random.chance(1, 10) ? 0 : Math.max(0, key - 1 - random.below(3)));
  for (let round = 0; round < 30; round++) {
    for (let i = 0; i < 200; i++) {
      const key = 1 + random.below(400);
      const holder = random.pick(['a', 'b', 'c']);
      const its = heldBy.get(key) ?? new Set();
      heldBy.set(key, its);
      if (random.chance(3, 5)) {
        blocks.stored(`${holder}/e`, [key], 'device', parentOf.get(key));
        its.add(holder);
      } else {
        blocks.removed(`${holder}/e`, [key]);
        its.delete(holder);
      }
    }
    const held = [...heldBy].filter(([, its]) => its.size > 0).map(([key]) => key);
    const found = await blocks.runs();
    const runs: readonly BlockRunView[] = found?.runs ?? [];
    assert.equal(
      runs.reduce((sum, { length }) => sum + length, 0),
      held.length,
      `round ${round}`,
    );
    const keys = new Set(runs.map((run) => run.key));
    for (const run of runs) {
      const key = Number.parseInt(run.key.slice(8), 16);
      const names = run.held_by.map(([at]) => found?.holders[at]);
      assert.deepEqual(new Set(names), heldBy.get(key), `round ${round}, holders of ${key}`);
      const parent = parentOf.get(key) ?? 0;
      const isRoot = (heldBy.get(parent)?.size ?? 0) === 0;
      assert.equal(run.parent === null, isRoot, `round ${round}, parent of ${key}`);
      if (run.parent !== null) assert.ok(keys.has(run.parent));
      const below = runs.filter((other) => other.parent === run.key);
      assert.equal(run.children, below.length);
      assert.equal(run.blocks, run.length + below.reduce((sum, other) => sum + other.blocks, 0));
    }
  }
});

test('100,000 blocks are shaped in slices: other work of the event loop comes in between', async () => {
  const blocks = new Blocks();
  for (let chain = 0; chain < 1_000; chain++) {
    const first = 1 + 100 * chain;
    blocks.stored(
      `n${chain % 7}/e`,
      Array.from({ length: 100 }, (_, i) => first + i),
      'device',
      chain % 10 === 0 ? 0 : 50,
    );
  }
  let numTurns = 0;
  const clock = { ...systemClock, turn: () => (numTurns++, systemClock.turn()) };
  const shape = await TreeShape.of(blocks.tree, blocks.index, clock);
  assert.equal(shape.numBlocks, 100_000);
  assert.ok(numTurns >= 5 * Math.floor(100_000 / 2_048), `${numTurns} turns`);
  assert.equal(shape.runs({ ...ALL, limit: 500 }, (holder) => holder)?.runs.length, 500);
});

test('a block that is announced again while the tree is shaped stays in it', async () => {
  const numBlocks = 5_000;
  const keys = Int32Array.from({ length: 2 * numBlocks }, (_, i) => (i % 2 === 0 ? 1 + i : 9));
  const index = new PrefixIndex(2 * numBlocks);
  const tree = new BlockTree(numBlocks);
  tree.add(keys, undefined, 0);
  const first = keys.subarray(0, 2);
  index.apply('a/e', { operation: 'stored', tier: 'dram', keys: keys.subarray(4) });
  let numTurns = 0;
  const clock = {
    ...systemClock,
    turn: () => {
      // The shaping has found that nobody holds the first block.
      if (numTurns++ === 0) index.apply('a/e', { operation: 'stored', tier: 'dram', keys: first });
      return Promise.resolve();
    },
  };
  await TreeShape.of(tree, index, clock);
  assert.ok(numTurns > 0);
  assert.ok(tree.find(first[0] ?? 0, first[1] ?? 0) > 0);
  assert.equal(tree.find(keys[2] ?? 0, keys[3] ?? 0), 0, 'one that nobody holds is taken out');
});
