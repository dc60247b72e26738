/** The prefix index against a naive model, and its bound. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { chainOf, type BlockKey, type Digest } from '../../../shared/kv/block_key.ts';
import { tiers, type Tier } from '../../../shared/protocol/block_events.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import { PrefixIndex } from '../../../services/router/cluster/prefix_index.ts';

const hashes = chainOf(
  '0'.repeat(32) as Digest,
  4,
  Array.from({ length: 40 }, (_, i) => i),
);

const words = keyWords(hashes.map(({ key }) => key));

test('runs are what a naive model says, under random stores, removals and losses', () => {
  const random = new Random(2);
  const index = new PrefixIndex();
  const naive = new Map<string, Map<Tier, Set<BlockKey>>>();
  const holders = ['a/1', 'b/1', 'c/2'];
  for (let event = 0; event < 3_000; event++) {
    const holder = random.pick(holders as [string, ...string[]]);
    const tier = random.pick(tiers);
    const { key } = hashes[random.below(hashes.length)]!;
    const set = naive.get(holder) ?? new Map<Tier, Set<BlockKey>>();
    naive.set(holder, set);
    const keys = set.get(tier) ?? new Set<BlockKey>();
    set.set(tier, keys);
    if (random.chance(1, 100)) {
      index.removeHolder(holder);
      naive.delete(holder);
    } else if (random.chance(2, 3)) {
      index.apply(holder, { operation: 'stored', tier, keys: keyWords([key]) });
      keys.add(key);
    } else {
      index.apply(holder, { operation: 'removed', tier, keys: keyWords([key]) });
      keys.delete(key);
    }
    const runs = index.runs(words);
    for (const name of holders) {
      const has = (at: number): boolean =>
        [...(naive.get(name)?.values() ?? [])].some((held) => held.has(hashes[at]!.key));
      let run = 0;
      while (run < hashes.length && has(run)) run++;
      assert.equal(runs.get(name) ?? 0, run);
    }
  }
});

test('keys beyond the bound are not indexed, and what is indexed stays (P1)', () => {
  const index = new PrefixIndex(3);
  index.apply('a', { operation: 'stored', tier: 'dram', keys: words });
  assert.equal(index.size, 3);
  assert.equal(index.runs(words).get('a'), 3);
  index.apply('b', { operation: 'stored', tier: 'dram', keys: words });
  assert.equal(index.runs(words).get('b'), 3, 'of known keys every holder is');
  index.apply('a', { operation: 'removed', tier: 'dram', keys: words.slice(0, 2) });
  index.apply('b', { operation: 'removed', tier: 'dram', keys: words.slice(0, 2) });
  index.apply('a', { operation: 'stored', tier: 'disk', keys: words.slice(6, 8) });
  assert.equal(index.size, 3, 'there is room again');
});
