/** Refusals for targets: which rule refuses what, and what is served nevertheless. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { OverloadPolicy } from '../../shared/placement/overload.ts';
import type { Decision, Prediction, Question, Targets } from '../../shared/placement/policy.ts';
import { createPolicy } from '../../shared/placement/policy_registry.ts';
import { cluster, instance, question, workOf } from './snapshots.ts';

const PREDICTION: Prediction = { ttftMs: 500, waitMs: 100, tbtMs: 20, totalMs: 2_500, cachedTokens: 0 };

/** Decides over a placement with such a prediction on an instance that takes 11 ms a token. */
function decide(
  targets: Targets | undefined,
  prediction: Partial<Prediction> = {},
  more: Partial<Question> = {},
  refusesHopeless = false,
): Decision {
  const snapshot = cluster({}, { decode: [instance('d1', { work: workOf() })], random: [0, 0.5] });
  const inner = createPolicy('longest_prefix', { localPrefillTokens: 64 });
  const predicting = {
    decide: (...args: Parameters<typeof inner.decide>): Decision => {
      const decision = inner.decide(...args);
      return decision.kind === 'place' ? { ...decision, prediction: { ...PREDICTION, ...prediction } } : decision;
    },
  };
  return new OverloadPolicy(predicting, { refusesHopeless }).decide({ ...question, targets, ...more }, snapshot);
}

function targets(ttftMs?: number, tbtMs?: number, totalMs?: number): Targets {
  return { ttftMs, tbtMs, totalMs };
}

/** Returns code and reason of a refusal, or that the request is placed, perhaps late. */
function outcomeOf(decision: Decision): string {
  if (decision.kind === 'reject') return `${decision.code}: ${decision.rejection?.reason}`;
  return decision.kind === 'place' && decision.isLate ? 'late' : decision.kind;
}

test('nothing is refused without targets, nor by a policy that predicts nothing', () => {
  assert.equal(outcomeOf(decide(undefined, { ttftMs: 1e9, waitMs: 1e9, tbtMs: 1e9 })), 'place');
  const blind = new OverloadPolicy(createPolicy('longest_prefix', { localPrefillTokens: 64 }), {
    refusesHopeless: true,
  });
  assert.equal(outcomeOf(blind.decide({ ...question, targets: targets(1, 1, 1) }, cluster({}))), 'place');
});

test('a request is refused that would wait for others longer than a fifth of its TTFT target', () => {
  assert.equal(outcomeOf(decide(targets(1_000), { waitMs: 200 })), 'place');
  assert.equal(outcomeOf(decide(targets(1_000), { waitMs: 201 })), 'rate_limit_exceeded: wait');
});

test('a request is refused whose first token would come too late, what it waited already included', () => {
  const short = { ttftMs: 900, waitMs: 150 };
  assert.equal(outcomeOf(decide(targets(1_000), short)), 'place');
  assert.equal(outcomeOf(decide(targets(1_000), short, { waitedMs: 101 })), 'rate_limit_exceeded: ttft');
});

test('a request is refused whose tokens would come too slowly', () => {
  assert.equal(outcomeOf(decide(targets(undefined, 20))), 'place');
  assert.equal(outcomeOf(decide(targets(undefined, 19))), 'rate_limit_exceeded: tbt');
});

test('a request is refused that would end after its deadline: for good, if the wait is not to blame', () => {
  assert.equal(outcomeOf(decide(targets(undefined, undefined, 2_500))), 'place');
  assert.equal(outcomeOf(decide(targets(undefined, undefined, 2_450))), 'rate_limit_exceeded: deadline');
  assert.equal(outcomeOf(decide(targets(undefined, undefined, 2_399))), 'deadline_exceeded: hopeless');
});

test('a request that misses a target by its own work alone is served late where the wait is short', () => {
  assert.equal(outcomeOf(decide(targets(300), { waitMs: 60 })), 'late');
  assert.equal(outcomeOf(decide(targets(300), { waitMs: 61 })), 'rate_limit_exceeded: wait');
  assert.equal(outcomeOf(decide(targets(undefined, 10))), 'late', 'its instance takes 11 ms a token');
  assert.equal(outcomeOf(decide(targets(300), { waitMs: 60 }, {}, true)), 'deadline_exceeded: hopeless');
});

test('a request for which an instance has worked is never refused', () => {
  assert.equal(outcomeOf(decide(targets(1, 1, 1), {}, { isBegun: true })), 'place');
});

test('a refusal carries the prediction, and the time by which it was missed, spread over twice that time', () => {
  const decision = decide(targets(1_000), { waitMs: 4_200 });
  assert(decision.kind === 'reject');
  assert.deepEqual(decision.rejection, {
    reason: 'wait',
    retryAfterMs: 6_000,
    prediction: { ...PREDICTION, waitMs: 4_200 },
  });
  assert.equal(
    decision.message,
    'the request would wait 4200 ms for others, more than a fifth of its TTFT target of 1000 ms: try again later',
  );
  const endless = decide(targets(1_000), { waitMs: 600_000 });
  assert(endless.kind === 'reject');
  assert.equal(endless.rejection?.retryAfterMs, 60_000, 'bounded (P1)');
});

test('the default policy takes a dearer placement that keeps the targets', () => {
  const busy = { tokens: 400, pairs: 0, sequences: 1 };
  const snapshot = cluster(
    {},
    {
      decode: [
        instance('d1', { work: workOf({ prompts: busy }) }),
        instance('d2', {
          work: workOf({ step: { constantMs: 40, rowMs: 2, pairMs: 0, contextMs: 0, sequenceMs: 0 } }),
        }),
      ],
      prefill: [],
    },
  );
  const policy = new OverloadPolicy(createPolicy('priced', { localPrefillTokens: 64 }), { refusesHopeless: false });
  const decision = policy.decide({ ...question, targets: targets(600) }, snapshot);
  assert(decision.kind === 'place', outcomeOf(decision));
  const { decode, prefill = decode } = decision.placement;
  assert.equal(prefill, 'd2/e', 'd1 computes for 400 ms before it begins');
});

test('load is judged for the time of the first token: sequences that end by then do not count', () => {
  const step = { constantMs: 10, rowMs: 0, pairMs: 0, contextMs: 0, sequenceMs: 1 };
  const generating = { sequences: 30, contextTokens: 0 };
  const policy = new OverloadPolicy(createPolicy('priced', { localPrefillTokens: 64 }), { refusesHopeless: false });
  const decideWith = (endMs: number): Decision => {
    const ends = [{ ms: endMs, sequences: 30, blocks: 200 }];
    const work = workOf({ step, generating, ends, numBlocks: 256, freeBlocks: 0 });
    return policy.decide(
      { ...question, outputTokens: 100, targets: targets(10_000, 30) },
      cluster({}, { decode: [instance('d1', { work })], prefill: [] }),
    );
  };
  assert.equal(outcomeOf(decideWith(500)), 'place', 'their end makes room, and few are left');
  assert.equal(outcomeOf(decideWith(2_500)), 'rate_limit_exceeded: wait');
});
