/** When the default policy has two prefill instances compute one prompt, and when not. Budget: 2 s. */
import { describe, expect, test } from 'vitest';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import type { ClusterSnapshot, Decision, InstanceSnapshot, Policy } from '../../shared/placement/policy.ts';
import { createPolicy } from '../../shared/placement/policy_registry.ts';
import { PricedPolicy } from '../../shared/placement/priced/priced_policy.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import { cluster, instance, question, workOf } from './snapshots.ts';

const [BLOCK, CHUNK] = [32, 512];
/** 100 ms a chunk of 512 rows. */
const step = { constantMs: 0, rowMs: 100 / CHUNK, pairMs: 0, contextMs: 0, sequenceMs: 0 };
const work = (more: Partial<InstanceWork> = {}): InstanceWork =>
  workOf({ step, chunkTokens: CHUNK, numBlocks: 4_096, freeBlocks: 4_096, blockBytes: 1_000_000, ...more });

function placed(
  {
    numTokens = 8 * CHUNK,
    prefill = [work(), work()],
    runs = {},
    more = {},
  }: {
    readonly numTokens?: number;
    readonly prefill?: readonly InstanceWork[];
    readonly runs?: Record<string, number>;
    readonly more?: Partial<ClusterSnapshot>;
  },
  policy: Policy = new PricedPolicy({ fallback: new LongestPrefixPolicy(0), isStrict: true, hasPipelines: true }),
): Extract<Decision, { kind: 'place' }> {
  const maxModelLen = 100_000;
  const named = (name: string, of: InstanceWork): InstanceSnapshot => instance(name, { work: of, maxModelLen });
  const snapshot = cluster(runs, {
    blockSize: BLOCK,
    decode: [named('d1', work())],
    prefill: prefill.map((of, i) => named(`p${i + 1}`, of)),
    otherLink: { bytesPerMs: 1_000_000, latencyMs: 0.1 },
    ...more,
  });
  const numBlocks = Math.floor((numTokens - 1) / BLOCK);
  const decision = policy.decide({ ...question, numTokens, numBlocks, maxLength: numTokens + 64 }, snapshot);
  if (decision.kind !== 'place') throw new Error(`the request is not placed: ${decision.kind}`);
  return decision;
}

test('a long prompt is computed by two idle prefill instances, in well under the time of one', () => {
  const { placement, prediction, alternatives } = placed({});
  expect([placement.prefill, placement.second?.prefill].sort()).toEqual(['p1/e', 'p2/e']);
  expect(placement.second!.tokens).toBe(4 * CHUNK);
  expect(placement.reason).toContain('compute by turns and d1 generates');
  const alone = alternatives.find(({ second }) => second === undefined)!;
  expect(alone.prediction!.ttftMs).toBeGreaterThan(800);
  // Ten percent more than five eighths of it, for what may come in between.
  expect(prediction!.ttftMs).toBeGreaterThan(500);
  expect(prediction!.ttftMs).toBeLessThan(0.82 * alone.prediction!.ttftMs);
  // Longer than a chunk of the other one can take, and no longer than a client waits.
  expect(placement.second!.patienceMs).toBe(2_000 + 6 * 100);
});

test('chunks have no more blocks than leave an instance while a step runs', () => {
  const large = work({ chunkTokens: 4_096 });
  const { placement } = placed({ numTokens: 16 * CHUNK, prefill: [large, large] });
  const chunks = placement.prefillSources.filter(({ isComputing }) => isComputing);
  expect(chunks.map(({ start, end }) => end - start)).toEqual(new Array(chunks.length).fill(32));
});

describe('one instance computes it', () => {
  const isAlone = (decision: Extract<Decision, { kind: 'place' }>): boolean => decision.placement.second === undefined;

  test('when the prompt has few chunks left', () => {
    expect(isAlone(placed({ numTokens: 3 * CHUNK }))).toBe(true);
    expect(isAlone(placed({ numTokens: 3 * CHUNK + BLOCK + 1 }))).toBe(false);
    const held = Math.ceil((5 * CHUNK) / BLOCK);
    expect(isAlone(placed({ runs: { p1: held, p2: held } })), 'three of eight chunks').toBe(true);
  });

  test('when the other one has no part of what it has', () => {
    const decision = placed({
      runs: { p1: (4 * CHUNK) / BLOCK },
      more: { otherLink: { bytesPerMs: 10, latencyMs: 1 } },
    });
    expect([isAlone(decision), decision.placement.prefill]).toEqual([true, 'p1/e']);
  });

  test('when the other one generates, is slow, has a queue or no room', () => {
    const generating = { sequences: 1, contextTokens: 10 };
    const others: Partial<InstanceWork>[] = [
      { generating },
      { coming: generating },
      { step: { ...step, rowMs: 5 * step.rowMs } },
      { prompts: { tokens: 10_000, pairs: 0, sequences: 1 } },
      { freeBlocks: 10 },
    ];
    for (const other of others)
      expect(isAlone(placed({ prefill: [work(), work(other)] })), JSON.stringify(other)).toBe(true);
  });

  test('when the links between them are slow', () => {
    expect(isAlone(placed({ more: { otherLink: { bytesPerMs: 100_000, latencyMs: 1 } } }))).toBe(true);
  });

  test('where policies are told so, and by every other policy', () => {
    const settings = { localPrefillTokens: 64, strictRoles: true };
    expect(isAlone(placed({}, createPolicy('priced', settings)))).toBe(false);
    expect(isAlone(placed({}, createPolicy('priced', { ...settings, hasPipelines: false })))).toBe(true);
    for (const name of ['longest_prefix', 'mooncake', 'dynamo', 'round_robin'] as const)
      expect(isAlone(placed({}, createPolicy(name, settings))), name).toBe(true);
  });
});

test('with prompts that wait elsewhere, the time of both instances has its price', () => {
  const waiting = work({ prompts: { tokens: 40_000, pairs: 0, sequences: 12 } });
  expect(placed({ prefill: [work(), work(), waiting, waiting] }).placement.second).toBeUndefined();
});

test('a longer queue never makes a prompt cheaper', () => {
  let last = 0;
  for (let tokens = 0; tokens < 12_000; tokens += 500) {
    const { priceMs } = placed({ prefill: [work({ prompts: { tokens, pairs: 0, sequences: 1 } }), work()] });
    expect(priceMs).toBeGreaterThanOrEqual(last);
    last = priceMs!;
  }
});
