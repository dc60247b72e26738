/** The sampled hit ratio against that of an exact cache. Budget: 20 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import { ReuseCurve } from '../../../services/router/observe/reuse.ts';
import { ReuseCurves } from '../../../services/router/observe/reuse_view.ts';
import type { InstanceLoad } from '../../../shared/protocol/membership.ts';
import { conversationTrace, hasConversationTrace } from '../../replay/traces.ts';

/** Returns words of a key that are spread evenly, as those of block keys are. */
function mixed(id: number): [low: number, high: number] {
  const first = Math.imul(id ^ (id >>> 16), 0x85eb_ca6b);
  const second = Math.imul(first ^ (first >>> 13), 0xc2b2_ae35);
  return [second ^ (second >>> 16), id];
}

/** Returns the hit ratio of a pool of `capacity` blocks that forgets the least recently used one. */
function exactRatio(accesses: readonly number[], capacity: number): number {
  // Accesses in their order; one is void when its block was accessed again after it.
  const lastOf = new Map<number, number>();
  let [hits, size, oldest] = [0, 0, 0];
  for (const [at, id] of accesses.entries()) {
    const last = lastOf.get(id) ?? -1;
    if (last >= oldest) hits++;
    else size++;
    lastOf.set(id, at);
    for (; size > capacity; oldest++) if (lastOf.get(accesses[oldest] ?? -1) === oldest) size--;
  }
  return hits / accesses.length;
}

function followed(chains: readonly (readonly number[])[]): ReuseCurve {
  const reuse = new ReuseCurve();
  for (const chain of chains) reuse.look(Int32Array.from(chain.flatMap(mixed)));
  return reuse;
}

test.runIf(hasConversationTrace)(
  "on the conversation trace the ratio is within two points of the exact cache's",
  () => {
    const lines = readFileSync(conversationTrace, 'utf8').trim().split('\n');
    const chains = lines.map((line) => (JSON.parse(line) as { hash_ids: number[] }).hash_ids);
    const reuse = followed(chains);
    const accesses = chains.flat();
    assert.equal(reuse.accesses, accesses.length);
    for (const capacity of [1_000, 5_000, 20_000, 100_000]) {
      const [exact, sampled] = [exactRatio(accesses, capacity), reuse.hitRatio(capacity)];
      assert.ok(Math.abs(exact - sampled) < 0.02, `${capacity} blocks: ${sampled} of ${exact}`);
    }
  },
);

test('with more keys than are followed, fewer of them are, and the ratio stays right', () => {
  // A loop over two million keys: a pool of fewer has no hit, a larger one hits in every round but the first.
  const numKeys = 2_000_000;
  const reuse = new ReuseCurve();
  const keys = new Int32Array(2 * numKeys);
  for (let i = 0; i < numKeys; i++) [keys[2 * i], keys[2 * i + 1]] = mixed(i);
  for (let round = 0; round < 3; round++) reuse.look(keys);
  assert.ok(reuse.sampledKeys <= 32_768, String(reuse.sampledKeys));
  assert.equal(reuse.accesses, 3 * numKeys);
  assert.ok(reuse.hitRatio(1_800_000) < 0.02, String(reuse.hitRatio(1_800_000)));
  assert.ok(Math.abs(reuse.hitRatio(2_300_000) - 2 / 3) < 0.02, String(reuse.hitRatio(2_300_000)));
  const { curve } = reuse;
  assert.ok(curve.length < 512 && curve.every(({ hitRatio }, i) => hitRatio >= (curve[i - 1]?.hitRatio ?? 0)));
});

test('a pool of nothing has no hit, and one key that is looked up again is a hit in any other', () => {
  const reuse = new ReuseCurve();
  assert.equal(reuse.hitRatio(1_000), 0);
  for (let i = 0; i < 10_000; i++) reuse.look(Int32Array.of(0, 7));
  assert.equal(reuse.hitRatio(0), 0);
  assert.ok(reuse.hitRatio(1_000) > 0.9);
  const few = new ReuseCurve();
  const chain = Int32Array.from(Array.from({ length: 100 }, (_, i) => mixed(i)).flat());
  for (let i = 0; i < 3; i++) few.look(chain);
  assert.ok(Math.abs(few.hitRatio(1_000) - 2 / 3) < 0.01, String(few.hitRatio(1_000)));
});

test('in a small pool the hits of a few popular blocks are counted, whatever their keys', () => {
  // 150 prompts that have three blocks in common and nine of their own: 447 of 1,800 accesses are hits.
  for (let seed = 0; seed < 20; seed++) {
    const common = [0, 1, 2].map((i) => 100_000 * (seed + 1) + i);
    const prompts = Array.from({ length: 150 }, (_, p) => Array.from({ length: 9 }, (_, i) => 9 * p + i));
    const reuse = followed(prompts.map((own) => [...common, ...own]));
    const ratio = reuse.hitRatio(1_000);
    assert.ok(Math.abs(ratio - 447 / 1_800) < 0.001, `keys from ${common[0] ?? 0}: ${ratio}`);
  }
});

test('capacities are those of the tiers of a model and of stores, in bytes by the blocks of its engines', () => {
  const curves = new ReuseCurves();
  const chain = Int32Array.from(Array.from({ length: 1_000 }, (_, i) => mixed(i)).flat());
  for (let i = 0; i < 50; i++) curves.look('m', chain);
  const tier = { blocks: 0, bytes: 0, hits: 0, misses: 0, evictions: 0, dedupFactor: 1 };
  const node = (name: string, role: 'decode' | 'store', tiers: InstanceLoad['tiers']): Instance => {
    const member = { name, role, address: `${name}:1`, pid: 1, epoch: 'e' };
    const instance = new Instance({ member, protocolVersion: 1 }, 0, undefined, role === 'store' ? undefined : 'm');
    const work = role === 'store' ? {} : { work: { blockBytes: 100 } as InstanceLoad['work'] };
    const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers, ...work };
    instance.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r', 0);
    return instance;
  };
  const nodes = [
    node('d1', 'decode', { device: { ...tier, capacityBytes: 50_000 } }),
    node('d2', 'decode', { device: { ...tier, capacityBytes: 20_000 } }),
    node('s1', 'store', { disk: { ...tier, capacityBytes: 1_000_000 } }),
  ];
  const view = curves.view('m', nodes, 7);
  assert.equal(view.accesses, 50_000);
  assert.deepEqual(view.tiers['device']?.capacity_bytes, 70_000);
  // A loop over 1,000 blocks: 700 have no hit, 1,400 and 10,000 all but the first round.
  assert.ok(view.tiers['device'].hit_ratio < 0.3, JSON.stringify(view.tiers));
  assert.ok(view.tiers['device'].hit_ratio_doubled > 0.95);
  assert.ok((view.tiers['disk']?.hit_ratio ?? 0) > 0.95);
  assert.deepEqual(curves.view('other', nodes, 7).curve, []);
});
