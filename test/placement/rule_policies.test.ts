/** The rules of other systems on small clusters, with their published numbers; what they share is in the conformance suite. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { ClusterSnapshot, Decision, Placement, Question } from '../../shared/placement/policy.ts';
import { createPolicy, type PolicyName } from '../../shared/placement/policy_registry.ts';
import { cluster, instance, question, workOf } from './snapshots.ts';

const settings = { localPrefillTokens: 8 };

function decide(name: PolicyName, snapshot: ClusterSnapshot, asked: Question = question): Decision {
  return createPolicy(name, settings).decide(asked, snapshot);
}

function place(name: PolicyName, snapshot: ClusterSnapshot, asked: Question = question): Placement {
  const decision = decide(name, snapshot, asked);
  assert.equal(decision.kind, 'place');
  assert.equal(decision.policy, name);
  return decision.placement;
}

/** The pair of a placement, as `prefill>decode`. */
function pair({ prefill, decode }: Placement): string {
  return `${prefill ?? 'nobody'}>${decode}`;
}

test('random takes each pool by its own number', () => {
  assert.equal(pair(place('random', cluster({}, { random: [0.9, 0.1] }))), 'p2/e>d1/e');
  assert.equal(pair(place('random', cluster({}, { random: [0.49, 0.51] }))), 'p1/e>d2/e');
});

test('round robin takes the instances of each pool in turn, by name', () => {
  const decode = ['c', 'a', 'b'].map((name) => instance(name));
  const turns = [0, 1, 2, 3].map((turn) => pair(place('round_robin', cluster({}, { decode, turn }))));
  assert.deepEqual(turns, ['p1/e>a/e', 'p2/e>b/e', 'p1/e>c/e', 'p2/e>a/e']);
});

test('least load takes the shortest queues, whoever holds the prompt', () => {
  const decode = [instance('d1', { queueLength: 1 }), instance('d2')];
  const prefill = [instance('p1', { queueLength: 2 }), instance('p2', { queueLength: 1 })];
  assert.equal(pair(place('least_load', cluster({ d1: 9, p1: 9 }, { decode, prefill }))), 'p2/e>d2/e');
});

test('local prefix takes the prefill instance that holds most, however busy, and fetches from nobody else', () => {
  const prefill = [instance('p1', { queueLength: 99 }), instance('p2')];
  const placement = place('local_prefix', cluster({ d1: 2, p1: 3, s1: 9 }, { prefill }));
  assert.equal(pair(placement), 'p1/e>d1/e');
  assert.deepEqual(placement.prefillSources, []);
  assert.deepEqual(placement.decodeSources, [{ address: 'p1:1', start: 2, end: 10, isComputing: true }]);
  assert.equal(placement.heldTokens, 12, 'what the store holds is not used');
});

test('a prefill instance that holds all full blocks sends them without computing', () => {
  const { prefill, decodeSources } = place('local_prefix', cluster({ p1: 10 }));
  assert.equal(prefill, undefined);
  assert.deepEqual(decodeSources, [{ address: 'p1:1', start: 0, end: 10, isComputing: false }]);
});

test('without a full block to compute, nobody prefills', () => {
  const short = { ...question, numTokens: 3, numBlocks: 0 };
  for (const name of ['random', 'least_load', 'sglang'] as const)
    assert.equal(place(name, cluster({}), short).prefill, undefined);
});

test('mooncake: transfer, queue and prefill add up to the time to first token, the lowest of which wins', () => {
  const prefill = [
    // Its own 5 of 10 blocks: 22 rows in one step of 10 ms, after a queue of 100 rows in one step.
    instance('p1', { work: workOf({ prompts: { tokens: 100, pairs: 0, sequences: 1 } }) }),
    // None of its own: it fetches the pool's 8 blocks at 1000 bytes per ms and 1 ms, and has 10 rows to compute.
    instance('p2', { work: workOf() }),
  ];
  const decode = [
    instance('d1', { work: workOf({ generating: { sequences: 3, contextTokens: 90 } }) }),
    instance('d2', { work: workOf() }),
  ];
  const links = [{ from: 's1:1', to: 'p2/e', bytesPerMs: 1_000, latencyMs: 1 }];
  const snapshot = cluster({ p1: 5, s1: 8 }, { prefill, decode, links, otherLink: { bytesPerMs: 1, latencyMs: 0 } });
  const decision = decide('mooncake', snapshot);
  assert(decision.kind === 'place');
  assert.deepEqual(decision.parts, { transfer: 9, queue: 0, prefill: 20 });
  // One more row with none in a step of d2.
  assert.deepEqual(decision.prediction, { ttftMs: 29, waitMs: 0, tbtMs: 11, totalMs: 29 + 21 * 11, cachedTokens: 32 });
  assert.equal(pair(decision.placement), 'p2/e>d2/e');
  assert.deepEqual(decision.placement.prefillSources, [{ address: 's1:1', start: 0, end: 8, isComputing: false }]);
  assert.deepEqual(decision.placement.decodeSources, [{ address: 'p2:1', start: 0, end: 10, isComputing: true }]);
});

test('mooncake computes rather than fetch a prefix that is at most the threshold times its own', () => {
  const known = { work: workOf() };
  const more = { prefill: [instance('p1', known)], decode: [instance('d1', known)] };
  assert.deepEqual(place('mooncake', cluster({ p1: 6, s1: 9 }, more)).prefillSources, []);
  const fetched = place('mooncake', cluster({ p1: 5, s1: 9 }, more)).prefillSources;
  assert.deepEqual(fetched, [{ address: 's1:1', start: 5, end: 9, isComputing: false }]);
});

test('mooncake refuses a request whose target no instance meets', () => {
  const known = { work: workOf() };
  const snapshot = cluster({}, { prefill: [instance('p1', known)], decode: [instance('d1', known)] });
  const asking = (ttftMs: number): string =>
    decide('mooncake', snapshot, { ...question, waitedMs: 10, targets: { ttftMs, tbtMs: undefined } }).kind;
  // 42 rows and the step's 10 ms, after 10 ms that the request has waited.
  assert.equal(asking(62), 'place');
  assert.equal(asking(61), 'reject');
});

test('dynamo: tokens to prefill less the credit for the prefix, then the decode instance with fewest active blocks', () => {
  const prefill = [
    // 42 + 38 tokens are 20 blocks, less 9 held: 11.
    instance('p1', { work: workOf({ prompts: { tokens: 38, pairs: 0, sequences: 1 } }) }),
    // 10.5 blocks, none held.
    instance('p2', { work: workOf() }),
  ];
  // Its prefix gives a decode instance no credit next to prefill instances.
  const decode = [
    instance('d1', { work: workOf({ freeBlocks: 200 }) }),
    instance('d2', { work: workOf({ freeBlocks: 201 }) }),
  ];
  const placement = place('dynamo', cluster({ d1: 10, p1: 9 }, { prefill, decode }));
  assert.equal(placement.decode, 'd2/e');
  assert.deepEqual(placement.decodeSources, [{ address: 'p2:1', start: 0, end: 10, isComputing: true }]);
  assert.match(placement.reason, /prefill costs 10.5 blocks, decode costs 66 blocks/);
});

test('dynamo without prefill instances: the whole formula, where a block on disk counts a quarter', () => {
  const decode = [
    // max(0, 10.5 - 8) + 60 active + 11.
    instance('d1', { work: workOf({ freeBlocks: 196 }) }),
    // 10.5 - 0.25 * 8 + 51 active + 11.
    instance('d2', { work: workOf({ freeBlocks: 205 }) }),
  ];
  const ranges = [
    {
      start: 0,
      end: 8,
      holders: [
        { id: 'd1/e', address: 'd1:1', isInMemory: true, isOnDevice: true },
        { id: 'd2/e', address: 'd2:1', isInMemory: false, isOnDevice: false },
      ],
    },
  ];
  const { decode: chosen, reason } = place('dynamo', cluster({}, { decode, prefill: [], ranges }));
  assert.equal(chosen, 'd2/e');
  assert.match(reason, /decode costs 70.5 blocks/);
});

test('dynamo breaks ties at random', () => {
  const known = { work: workOf() };
  const decode = [instance('d1', known), instance('d2', known)];
  const of = (random: number): string =>
    place('dynamo', cluster({}, { decode, prefill: [], random: [0, random] })).decode;
  assert.deepEqual([of(0.4), of(0.6)], ['d1/e', 'd2/e']);
});

test('sglang: more than half of the prompt follows the prefix, unless queues differ by more than 32 and by a tenth', () => {
  const prefillOf = (runs: Record<string, number>, queues: readonly [number, number]): string | undefined =>
    place(
      'sglang',
      cluster(runs, {
        prefill: [instance('p1', { queueLength: queues[0] }), instance('p2', { queueLength: queues[1] })],
      }),
    ).decodeSources[0]?.address;
  // 24 of 42 tokens are more than half, 20 are not.
  assert.equal(prefillOf({ p1: 6 }, [5, 0]), 'p1:1');
  assert.equal(prefillOf({ p1: 5 }, [5, 0]), 'p2:1');
  assert.equal(prefillOf({ p1: 6 }, [32, 0]), 'p1:1');
  assert.equal(prefillOf({ p1: 6 }, [33, 0]), 'p2:1');
  assert.equal(prefillOf({ p1: 6 }, [433, 400]), 'p1:1', '433 is not more than 1.1 times 400');
});

test('llm-d: three parts prefix, two parts each of queue, free blocks and cold spreading', () => {
  const decode = [
    // 3 * 0.8 + 2 * 0 + 2 * 0.5 + 2 * 0.5
    instance('d1', { work: workOf({ freeBlocks: 128, prompts: { tokens: 9, pairs: 0, sequences: 4 } }) }),
    // 3 * 0 + 2 * 1 + 2 * 1 + 2 * 0.5
    instance('d2', { work: workOf() }),
  ];
  const busy = place('llmd', cluster({ d1: 8 }, { decode, prefill: [] }));
  assert.equal(busy.decode, 'd2/e');
  assert.match(busy.reason, /decode scores 5\.00, 42 tokens/);
  const calm = [decode[0] && { ...decode[0], work: workOf() }, decode[1]].filter((one) => one !== undefined);
  // 3 * 0.8 + 2 + 2 + 1
  assert.match(
    place('llmd', cluster({ d1: 8 }, { decode: calm, prefill: [] })).reason,
    /decode scores 7\.40, 10 tokens/,
  );
});

test('llm-d spreads cold prompts: who had none first, then who had one longest ago', () => {
  const known = { work: workOf() };
  const decode = [
    instance('d1', { ...known, coldAtMs: -10 }),
    instance('d2', { ...known, coldAtMs: -900 }),
    instance('d3', known),
  ];
  const cold = (pool: readonly (typeof decode)[number][]): string =>
    place('llmd', cluster({}, { decode: pool, prefill: [] })).decode;
  assert.equal(cold(decode), 'd3/e');
  assert.equal(cold(decode.slice(0, 2)), 'd2/e');
});

test('llm-d asks a prefill instance from 16 tokens on that are not cached on the decode instance', () => {
  const known = { work: workOf() };
  const more = { decode: [instance('d1', known)], prefill: [instance('p1', known)] };
  // 42 - 24 and 42 - 28 tokens.
  assert.equal(place('llmd', cluster({ d1: 6 }, more)).prefill, 'p1/e');
  assert.equal(place('llmd', cluster({ d1: 7 }, more)).prefill, undefined);
});

test('rules that need coefficients place by the longest prefix while an instance sends none, and say so', () => {
  const known = { work: workOf() };
  const decode = [instance('d1', known), instance('d2', known)];
  const prefill = [instance('p1', known), instance('p2')];
  for (const name of ['mooncake', 'dynamo', 'llmd'] as const) {
    const decision = decide(name, cluster({ d2: 3 }, { decode, prefill }));
    assert(decision.kind === 'place');
    assert.equal(decision.policy, 'longest_prefix');
    assert.equal(decision.placement.decode, 'd2/e');
    assert.match(decision.placement.reason, /^no coefficients from p2: placed by longest prefix; 3 of 10 blocks held/);
    const gone = [instance('p1', known), instance('p2', { isPlaceable: false })];
    const upgraded = decide(name, cluster({}, { decode, prefill: gone }));
    assert(upgraded.kind === 'place');
    assert.equal(upgraded.policy, name, 'an instance that is not chosen from needs none');
  }
});
