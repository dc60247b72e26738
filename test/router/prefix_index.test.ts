/** The prefix index against a naive model, its feed with gaps, and placements. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { tiers, type Tier } from '../../shared/protocol/block_events.ts';
import type { Registration } from '../../shared/protocol/membership.ts';
import { Instance } from '../../services/router/cluster_view.ts';
import { SimplePlacer, type ClusterState, type PlacementQuestion } from '../../services/router/placement.ts';
import { PrefixIndex } from '../../services/router/prefix_index.ts';

const links = chainOf(
  '0'.repeat(32) as Digest,
  4,
  Array.from({ length: 40 }, (_, i) => i),
);

test('runs are what a naive model says, under random stores, removals and losses', () => {
  const random = new Random(2);
  const index = new PrefixIndex();
  const naive = new Map<string, Map<Tier, Set<BlockKey>>>();
  const holders = ['a/1', 'b/1', 'c/2'];
  for (let event = 0; event < 3_000; event++) {
    const holder = random.pick(holders as [string, ...string[]]);
    const tier = random.pick(tiers);
    const { key } = links[random.below(links.length)]!;
    const set = naive.get(holder) ?? new Map<Tier, Set<BlockKey>>();
    naive.set(holder, set);
    const keys = set.get(tier) ?? new Set<BlockKey>();
    set.set(tier, keys);
    if (random.chance(1, 100)) {
      index.removeHolder(holder);
      naive.delete(holder);
    } else if (random.chance(2, 3)) {
      index.apply(holder, { operation: 'stored', tier, keys: [key] });
      keys.add(key);
    } else {
      index.apply(holder, { operation: 'removed', tier, keys: [key] });
      keys.delete(key);
    }
    const runs = index.runs(links);
    for (const name of holders) {
      const has = (at: number): boolean =>
        [...(naive.get(name)?.values() ?? [])].some((held) => held.has(links[at]!.key));
      let run = 0;
      while (run < links.length && has(run)) run++;
      assert.equal(runs.get(name) ?? 0, run);
    }
  }
});

test('keys beyond the bound are not indexed, and what is indexed stays (P1)', () => {
  const index = new PrefixIndex(3);
  const keys = links.map(({ key }) => key);
  index.apply('a', { operation: 'stored', tier: 'dram', keys });
  assert.equal(index.size, 3);
  assert.equal(index.runs(links).get('a'), 3);
  index.apply('b', { operation: 'stored', tier: 'dram', keys });
  assert.equal(index.runs(links).get('b'), 3, 'of known keys every holder is');
  index.apply('a', { operation: 'removed', tier: 'dram', keys: keys.slice(0, 1) });
  index.apply('b', { operation: 'removed', tier: 'dram', keys: keys.slice(0, 1) });
  index.apply('a', { operation: 'stored', tier: 'disk', keys: keys.slice(3, 4) });
  assert.equal(index.size, 3, 'there is room again');
});

describe('placement', () => {
  const instance = (role: 'prefill' | 'decode' | 'store', name: string): Instance => {
    const member = { name, role, address: `${name}:1`, pid: 1, epoch: 'e' };
    const engine = { maxModelLen: 128 } as NonNullable<Registration['engine']>;
    return new Instance({ member, protocolVersion: 1, ...(role === 'store' ? {} : { engine }) }, 0);
  };
  const [d1, d2, p1, p2, s1] = [
    instance('decode', 'd1'),
    instance('decode', 'd2'),
    instance('prefill', 'p1'),
    instance('prefill', 'p2'),
    instance('store', 's1'),
  ];
  const cluster = (runs: Record<string, number>, prefill = [p1, p2]): ClusterState => ({
    blockSize: 4,
    decode: [d1, d2],
    prefill,
    byHolder: (id) => [d1, d2, p1, p2, s1].find((one) => one.id === id),
    runs: () => new Map(Object.entries(runs).map(([name, run]) => [`${name}/e`, run])),
  });
  const nobody = { has: () => false, isHolder: () => true } as PlacementQuestion['excluded'];
  const question = { numTokens: 42, links, maxLength: 64, excluded: nobody };
  const placer = new SimplePlacer(8);

  test('the longest run wins; what others hold beyond it is fetched, the rest prefilled', () => {
    const { decode, prefill, decodeSources, prefillSources } = placer.place(
      question,
      cluster({ d2: 2, s1: 5, p2: 1 }),
    )!;
    assert.equal(decode, d2);
    assert.equal(prefill, p2);
    assert.deepEqual(decodeSources, [
      { address: 's1:1', start: 2, end: 5, isComputing: false },
      { address: 'p2:1', start: 5, end: 10, isComputing: true },
    ]);
    assert.deepEqual(prefillSources, [{ address: 's1:1', start: 1, end: 5, isComputing: false }]);
  });

  test('little to compute goes straight to decode', () => {
    const { prefill, decodeSources, maxSelfCompute } = placer.place(question, cluster({ s1: 9 }))!;
    assert.equal(prefill, undefined);
    assert.deepEqual(decodeSources, [{ address: 's1:1', start: 0, end: 9, isComputing: false }]);
    assert.equal(maxSelfCompute, 8);
  });

  test('without prefill instances the decode instance computes everything', () => {
    const { prefill, maxSelfCompute } = placer.place(question, cluster({}, []))!;
    assert.equal(prefill, undefined);
    assert.equal(maxSelfCompute, 42);
  });

  test('a long queue outweighs a run, a suspect or excluded instance is not asked, and nobody left means no placement', () => {
    d1.numPlaced = 20;
    assert.equal(placer.place(question, cluster({ d1: 9 }))!.decode, d2);
    d1.numPlaced = 0;
    d1.isSuspect = true;
    assert.equal(placer.place(question, cluster({ d1: 9 }))!.decode, d2);
    assert.equal(
      placer.place({ ...question, excluded: { ...nobody, has: (one: Instance) => one === d2 } }, cluster({})),
      undefined,
    );
    d1.isSuspect = false;
  });
});
