/**
 * The price of a placement: what each part of it reads of the work, the promises and the links of a snapshot. What every policy keeps is
 * in the conformance suite; how well the price places, in test/router/replay. Budget: 1 s.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import type { ClusterSnapshot, Decision, InstanceSnapshot } from '../../shared/placement/policy.ts';
import { PricedPolicy } from '../../shared/placement/priced/priced_policy.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import { cluster, instance, question, workOf } from './snapshots.ts';

const fallback = new LongestPrefixPolicy(8);
const policy = new PricedPolicy({ fallback });

/** An instance by its name, with work. */
const at = (name: string, more: Partial<InstanceWork> = {}): InstanceSnapshot => instance(name, { work: workOf(more) });
const queueOf = (tokens: number): Partial<InstanceWork> => ({ prompts: { tokens, pairs: 0, sequences: 1 } });

function decided(snapshot: ClusterSnapshot, by = policy): Extract<Decision, { kind: 'place' }> {
  const decision = by.decide(question, snapshot);
  assert(decision.kind === 'place');
  assert.equal(decision.policy, 'priced');
  return decision;
}

test('prompts that wait cost their time once, and a device without room the time until it has some', () => {
  const alone = (more: Partial<InstanceWork>): ReturnType<typeof decided> =>
    decided(cluster({}, { decode: [at('d1', more)], prefill: [] }));
  const idle = alone({});
  const queued = alone(queueOf(512));
  // One step of 512 rows of 1 ms, and its constant 10 ms.
  assert.equal(queued.prediction?.waitMs, 522);
  assert.equal(queued.prediction.ttftMs - (idle.prediction?.ttftMs ?? 0), 522);
  const full = alone({ freeBlocks: 0, ends: [{ ms: 700, blocks: 200, sequences: 1 }] });
  assert.equal(full.prediction?.ttftMs, 700);
});

test('a request goes where the queue is shorter, and where its blocks are when the queue is not longer than that saves', () => {
  const decode = (tokens: number): InstanceSnapshot[] => [at('d1', queueOf(tokens)), at('d2')];
  assert.equal(decided(cluster({}, { decode: decode(100), prefill: [] })).placement.decode, 'd2/e');
  const links = [{ from: 'd1:1', to: 'd2/e', bytesPerMs: 1, latencyMs: 10_000 }];
  const hit = (tokens: number): string =>
    decided(cluster({ d1: 10 }, { decode: decode(tokens), prefill: [], links })).placement.decode;
  assert.equal(hit(10), 'd1/e');
  assert.equal(hit(100), 'd2/e');
});

test('blocks that an earlier request computes are waited for, those that it only fetches are fetched too', () => {
  const prefill: InstanceSnapshot[] = [];
  const decode = [at('d1', queueOf(60)), at('d2', queueOf(600))];
  const sources = [{ address: 's1:1', start: 0, end: 10, isComputing: false }];
  const of = (fetchedTo: number, held = 10): ReturnType<typeof decided> =>
    decided(cluster({ s1: held }, { decode, prefill, promised: [{ id: 'd1/e', end: 10, fetchedTo }] }));
  const waits = of(0);
  assert.deepEqual([waits.placement.decode, waits.placement.decodeSources], ['d1/e', []]);
  assert.equal(waits.prediction?.cachedTokens, 40);
  const fetches = of(10);
  assert.deepEqual([fetches.placement.decode, fetches.placement.decodeSources], ['d1/e', sources]);
  // Nobody else has them any more: the request that fetches them got them, or computes them.
  assert.deepEqual(of(10, 0).placement.decodeSources, []);
  // The held blocks end within the run: the rest is computed there.
  assert.deepEqual(of(4, 6).placement.decodeSources, [{ ...sources[0], end: 6 }]);
  assert.deepEqual(of(0, 6).placement.decodeSources, []);
});

test('strict roles fetch what a decode instance may not compute, also where computing it would be sooner', () => {
  const strict = new PricedPolicy({ fallback, isStrict: true, localTokens: 4 });
  const otherLink = { bytesPerMs: 1, latencyMs: 100 };
  const snapshot = cluster({ p1: 10 }, { decode: [at('d1')], prefill: [at('p1')], otherLink });
  assert.deepEqual(decided(snapshot).placement.decodeSources, []);
  const { prefill, decodeSources } = decided(snapshot, strict).placement;
  assert.deepEqual([prefill, decodeSources], [undefined, [{ address: 'p1:1', start: 0, end: 10, isComputing: false }]]);
});

test('an instance that has all full blocks gets none from another one', () => {
  const snapshot = cluster({ d1: 10 }, { decode: [at('d1', queueOf(1_000))], prefill: [at('p1')] });
  for (const { decode, prefill } of decided(snapshot).alternatives)
    assert(decode !== 'd1/e' || prefill === undefined, `${prefill} computes for ${decode}`);
});

test('strict roles: an instance alone computes the tail after blocks that it will have, and no blocks that nobody has', () => {
  const strict = new PricedPolicy({ fallback, isStrict: true, localTokens: 1 });
  const aloneOf = (end: number): readonly (string | undefined)[] => {
    const promised = [{ id: 'd1/e', end, fetchedTo: 0 }];
    const snapshot = cluster({ d1: 3, p1: 8 }, { decode: [at('d1'), at('d2')], prefill: [at('p1')], promised });
    const { placement, priceMs, alternatives } = decided(snapshot, strict);
    const all = [{ ...placement, priceMs }, ...alternatives];
    for (const one of all) assert(Number.isFinite(one.priceMs), `${one.decode}: ${one.priceMs}`);
    return all.filter(({ prefill }) => prefill === undefined).map(({ decode }) => decode);
  };
  assert.deepEqual(aloneOf(10), ['d1/e']);
  assert.deepEqual(aloneOf(8), []);
});
