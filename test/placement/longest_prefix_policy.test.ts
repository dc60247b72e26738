/** The plain policy: snapshots in, decisions out. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import type { ClusterSnapshot, Decision, InstanceSnapshot, Placement } from '../../shared/placement/policy.ts';
import { cluster, instance, question } from './snapshots.ts';

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

/** Work of an idle instance: a step takes 1 ms, a row `rowMs`; a block's record has 1,000 bytes. */
const idle = (rowMs: number): InstanceSnapshot['work'] => ({
  step: { constantMs: 1, rowMs, pairMs: 0, contextMs: 0, sequenceMs: 0 },
  chunkTokens: 16,
  maxNumSeqs: 8,
  pacedStepMs: 0,
  promptsMs: 0,
  ends: [],
  prompts: { tokens: 0, pairs: 0, sequences: 0 },
  generating: { sequences: 0, contextTokens: 0 },
  coming: { sequences: 0, contextTokens: 0 },
  numBlocks: 64,
  freeBlocks: 64,
  waitingBlocks: 0,
  blockBytes: 1_000,
});

test('an instance is priced by what it would fetch over its links and compute by its steps, where it says how long they take', () => {
  const decode = [
    instance('d1', { work: idle(2) }),
    instance('d2'),
    instance('d3', { work: idle(4) }),
    instance('d4', { work: idle(2) }),
  ];
  const links = [{ from: 's1:1', to: 'd1/e', bytesPerMs: 100, latencyMs: 3 }];
  const otherLink = { bytesPerMs: 1_000, latencyMs: 2 };
  const decision = policy.decide(question, cluster({ d1: 2, s1: 5, d3: 5 }, { decode, links, otherLink }));
  assert(decision.kind === 'place');
  // d3 holds the longest run: nothing to fetch, 42 - 20 tokens at 4 ms, in 2 steps.
  assert.equal(decision.placement.decode, 'd3/e');
  assert.equal(decision.priceMs, 90);
  assert.deepEqual(decision.alternatives, [
    // 5 blocks to fetch over an unknown link, 22 rows at 2 ms in 2 steps.
    { decode: 'd4/e', run: 0, queueLength: 0, priceMs: 5 + 2 + 44 + 2 },
    // 3 blocks over the link from s1.
    { decode: 'd1/e', run: 2, queueLength: 0, priceMs: 30 + 3 + 44 + 2 },
    { decode: 'd2/e', run: 0, queueLength: 0, priceMs: undefined },
  ]);
});

test('of many alternatives the eight of the lowest prices are told (P1)', () => {
  const decode = Array.from({ length: 12 }, (_, i) => instance(`d${i}`, { work: idle(12 - i), queueLength: i }));
  const decision = policy.decide(question, cluster({}, { decode }));
  assert(decision.kind === 'place');
  assert.equal(decision.placement.decode, 'd0/e');
  assert.deepEqual(
    decision.alternatives.map((one) => one.decode),
    [11, 10, 9, 8, 7, 6, 5, 4].map((i) => `d${i}/e`),
  );
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
