/** The plain policy: snapshots in, decisions out. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { LongestPrefixPolicy } from '../../../services/router/conductor/longest_prefix_policy.ts';
import type {
  ClusterSnapshot,
  Decision,
  HeldSnapshot,
  InstanceSnapshot,
  Placement,
  Question,
} from '../../../services/router/conductor/policy.ts';

const instance = (name: string, more: Partial<InstanceSnapshot> = {}): InstanceSnapshot => ({
  ...{ id: `${name}/e`, name, address: `${name}:1`, maxModelLen: 128, queueLength: 0 },
  ...{ isPlaceable: true, isAvoided: false, price: { computeMs: undefined, fetchMs: undefined }, ...more },
});

/** Returns ranges of blocks with their holders; `runs` maps each holder to its number of leading blocks, all in memory. */
function rangesOf(runs: Record<string, number>): HeldSnapshot[] {
  const ends = [...new Set(Object.values(runs))].sort((a, b) => a - b);
  return ends.map((end, i) => ({
    ...{ start: ends[i - 1] ?? 0, end },
    holders: Object.entries(runs).flatMap(([name, run]) =>
      run >= end ? [{ id: `${name}/e`, address: `${name}:1`, isInMemory: true }] : [],
    ),
  }));
}

function cluster(runs: Record<string, number>, more: Partial<ClusterSnapshot> = {}): ClusterSnapshot {
  return {
    blockSize: 4,
    decode: [instance('d1'), instance('d2')],
    prefill: [instance('p1'), instance('p2')],
    ranges: rangesOf(runs),
    tieBreak: 0,
    ageMs: 60_000,
    withoutDecodeMs: 0,
    ...more,
  };
}

const question: Question = {
  numTokens: 42,
  numBlocks: 10,
  maxLength: 64,
  retryAvoided: false,
  isEmbedding: false,
  decode: undefined,
};
const policy = new LongestPrefixPolicy(8);

function placed(decision: Decision): Placement {
  assert.equal(decision.kind, 'place');
  return decision.placement;
}

test('the longest run wins; what others hold beyond it is fetched, the rest prefilled; the alternatives are told', () => {
  const decision = policy.decide(question, cluster({ d2: 2, s1: 5, p2: 1 }));
  const { decode, prefill, decodeSources, prefillSources } = placed(decision);
  assert.equal(decode, 'd2/e');
  assert.equal(prefill, 'p2/e');
  assert.deepEqual(decodeSources, [
    { address: 's1:1', start: 2, end: 5, isComputing: false },
    { address: 'p2:1', start: 5, end: 10, isComputing: true },
  ]);
  assert.deepEqual(prefillSources, [{ address: 's1:1', start: 1, end: 5, isComputing: false }]);
  assert.deepEqual(decision.kind === 'place' && decision.alternatives, [
    { decode: 'd1/e', run: 0, queueLength: 0, priceMs: undefined },
  ]);
});

test('little to compute goes straight to decode', () => {
  const { prefill, decodeSources, maxSelfCompute } = placed(policy.decide(question, cluster({ s1: 9 })));
  assert.equal(prefill, undefined);
  assert.deepEqual(decodeSources, [{ address: 's1:1', start: 0, end: 9, isComputing: false }]);
  assert.equal(maxSelfCompute, 8);
});

test('without prefill instances the decode instance computes everything', () => {
  const { prefill, maxSelfCompute } = placed(policy.decide(question, cluster({}, { prefill: [] })));
  assert.equal(prefill, undefined);
  assert.equal(maxSelfCompute, 42);
});

test('a decode instance that has begun keeps the request; it is told who has the rest', () => {
  const begun = { ...question, decode: { id: 'd1/e', from: 3 } };
  const { decode, decodeSources } = placed(policy.decide(begun, cluster({ s1: 9 })));
  assert.equal(decode, 'd1/e');
  assert.deepEqual(decodeSources, [{ address: 's1:1', start: 3, end: 9, isComputing: false }]);
});

test('a long queue outweighs a run; one that is lost, drains or is too small is not asked', () => {
  const busy = cluster({ d1: 9 }, { decode: [instance('d1', { queueLength: 20 }), instance('d2')] });
  assert.equal(placed(policy.decide(question, busy)).decode, 'd2/e');
  const gone = cluster({ d1: 9 }, { decode: [instance('d1', { isPlaceable: false }), instance('d2')] });
  assert.equal(placed(policy.decide(question, gone)).decode, 'd2/e');
  const small = cluster({ d1: 9 }, { decode: [instance('d1', { maxModelLen: 63 }), instance('d2')] });
  assert.equal(placed(policy.decide(question, small)).decode, 'd2/e');
});

test('who failed this request is avoided while there is another, and tried when there is none', () => {
  const one = cluster({}, { decode: [instance('d1', { isAvoided: true }), instance('d2')] });
  assert.equal(placed(policy.decide(question, one)).decode, 'd2/e');
  const none = cluster(
    {},
    {
      decode: [instance('d1', { isAvoided: true })],
      prefill: [instance('p1', { isAvoided: true })],
    },
  );
  assert.deepEqual(policy.decide(question, none), { kind: 'wait', why: 'all are avoided', forMs: 100 });
  const retried = placed(policy.decide({ ...question, retryAvoided: true }, none));
  assert.equal(retried.decode, 'd1/e');
  assert.equal(retried.prefill, 'p1/e', 'a prefill instance too');
});

test('a decode instance is waited for while one is expected; then the request is refused', () => {
  const empty = { decode: [] };
  const decide = (more: Partial<ClusterSnapshot>): string =>
    policy.decide(question, cluster({}, { ...empty, ...more })).kind;
  assert.equal(decide({ withoutDecodeMs: 59_000 }), 'wait');
  assert.equal(decide({ withoutDecodeMs: 61_000 }), 'reject');
  assert.equal(decide({ withoutDecodeMs: undefined, ageMs: 4_000 }), 'wait');
  assert.equal(decide({ withoutDecodeMs: undefined, ageMs: 6_000 }), 'reject');
});

test('what can be priced is: what it fetches and what it computes, by what each took there before', () => {
  const decode = [
    instance('d1', { price: { computeMs: 2, fetchMs: 0.5 } }),
    instance('d2', { price: { computeMs: 1, fetchMs: undefined } }),
    instance('d3', { price: { computeMs: 4, fetchMs: undefined } }),
  ];
  const decision = policy.decide(question, cluster({ d1: 2, s1: 5, d3: 5 }, { decode }));
  assert(decision.kind === 'place');
  // d3 holds the longest run: nothing to fetch, 42 - 20 tokens at 4 ms.
  assert.equal(decision.placement.decode, 'd3/e');
  assert.equal(decision.priceMs, 88);
  assert.deepEqual(decision.alternatives, [
    // 12 tokens to fetch at 0.5 ms, 22 to compute at 2 ms.
    { decode: 'd1/e', run: 2, queueLength: 0, priceMs: 50 },
    // d2 would have to fetch, and its fetch price is unknown.
    { decode: 'd2/e', run: 0, queueLength: 0, priceMs: undefined },
  ]);
});

test('routers take turns among equals, and only among them', () => {
  const decode = ['a', 'b', 'c', 'd'].map((name) => instance(name));
  const chosen = (tieBreak: number, runs: Record<string, number> = {}): string =>
    placed(policy.decide(question, cluster(runs, { decode, tieBreak }))).decode;
  assert.deepEqual(
    [0, 1, 2, 3, 4].map((tieBreak) => chosen(tieBreak)),
    ['a/e', 'b/e', 'c/e', 'd/e', 'a/e'],
  );
  assert.deepEqual(
    [0, 1, 2, 3].map((tieBreak) => chosen(tieBreak, { c: 1 })),
    Array(4).fill('c/e'),
  );
});

test('an embedding with much to compute goes to a prefill instance, with little to whoever holds most, of either role', () => {
  const embedding = { ...question, maxLength: 42, isEmbedding: true };
  const much = placed(policy.decide(embedding, cluster({ d1: 5, s1: 6, p2: 2 })));
  assert.equal(much.decode, 'p2/e');
  assert.equal(much.prefill, undefined);
  assert.deepEqual(much.decodeSources, [{ address: 's1:1', start: 2, end: 6, isComputing: false }]);
  assert.equal(much.heldTokens, 24);
  // All but 6 tokens are held somewhere.
  assert.equal(placed(policy.decide(embedding, cluster({ d1: 9, p2: 2 }))).decode, 'd1/e');
  assert.equal(placed(policy.decide(embedding, cluster({ d1: 5, p2: 9 }))).decode, 'p2/e');
  const decision = policy.decide(embedding, cluster({ d1: 9, p2: 2 }));
  assert(decision.kind === 'place');
  assert.deepEqual(decision.alternatives.map(({ decode }) => decode).sort(), ['d2/e', 'p1/e', 'p2/e']);
});

test('an embedding goes to decode instances where no prefill instance can take it, and waits when none can', () => {
  const embedding = { ...question, maxLength: 42, isEmbedding: true };
  const decide = (more: Partial<ClusterSnapshot>): Decision => policy.decide(embedding, cluster({}, more));
  for (const prefill of [
    [],
    [instance('p1', { isAvoided: true })],
    [instance('p1', { isPlaceable: false })],
    [instance('p1', { maxModelLen: 41 })],
  ])
    assert.equal(placed(decide({ prefill })).decode, 'd1/e');
  // A context as long as the prompt is enough: no token follows.
  assert.equal(placed(decide({ prefill: [instance('p1', { maxModelLen: 42 })] })).decode, 'p1/e');
  assert.equal(placed(decide({ decode: [] })).decode, 'p1/e');
  const avoided = instance('p1', { isAvoided: true });
  const waiting = decide({ decode: [], prefill: [avoided] });
  assert(waiting.kind === 'wait');
  assert.equal(waiting.why, 'all are avoided');
  const again = policy.decide({ ...embedding, retryAvoided: true }, cluster({}, { decode: [], prefill: [avoided] }));
  assert.equal(placed(again).decode, 'p1/e');
});
