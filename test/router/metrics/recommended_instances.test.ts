/** How many instances the requests of the last minutes need. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { RequestDemand, recommendedInstances } from '../../../services/router/metrics/recommended_instances.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';

const work: InstanceWork = {
  step: { constantMs: 10, rowMs: 0.1, pairMs: 0, contextMs: 0.001, sequenceMs: 0 },
  chunkTokens: 1_000,
  maxNumSeqs: 256,
  pacedStepMs: 50,
  numBlocks: 100_000,
  freeBlocks: 0,
  waitingBlocks: 0,
  prompts: { tokens: 0, pairs: 0, sequences: 0 },
  generating: { sequences: 0, contextTokens: 0 },
  coming: { sequences: 0, contextTokens: 0 },
  blockBytes: 1,
  promptsMs: 0,
  ends: [],
};

/** Two requests a second with prompts of 4,000 tokens, half of them cached, and answers of 200, for that many seconds. */
function demandOf(seconds: number): RequestDemand {
  const demand = new RequestDemand();
  for (let i = 0; i <= 2 * seconds; i++)
    demand.ended({ promptTokens: 4_000, cachedTokens: 2_000, outputTokens: 200 }, 500 * i);
  return demand;
}

test('rates are those of the requests, whatever the time of observation', () => {
  for (const seconds of [120, 3_600]) {
    const rates = demandOf(seconds).rates(1_000 * seconds);
    assert(rates);
    const share = rates.rows / 4;
    assert(share > 0.98 && share < 1.02, `${rates.rows} rows a millisecond`);
    assert.equal((rates.tokens / rates.rows).toFixed(6), '0.100000');
    assert.equal((rates.contextTokens / rates.tokens).toFixed(3), '4100.000');
    // 2,000 rows after 2,000 tokens: 4,000,000 + 2,001,000 pairs.
    assert.equal((rates.pairs / rates.prompts).toFixed(0), '6001000');
  }
});

test('the rates of an hour ago are forgotten, and nothing is known before a minute has passed', () => {
  const demand = demandOf(120);
  const before = demand.rates(120_000)!.rows;
  assert(demand.rates(3_720_000)!.rows < 1e-4 * before);
  assert.equal(demandOf(59).rates(59_000), undefined);
  assert.equal(new RequestDemand().rates(1e9), undefined);
});

test('prompts need the milliseconds of their rows, tokens the steps that fit the pacing target, with room of a fifth', () => {
  const rates = { prompts: 0.01, rows: 20, pairs: 0, tokens: 2, contextTokens: 2 * 1_900 };
  // Prompts: 0.02 steps of 10 ms and 20 rows of 0.1 ms: 2.2 instances, 2.75 at 80 %.
  // Tokens: 40 ms of the target are 20 sequences of 0.1 + 1.9 ms; 2 tokens a millisecond are 50 ms × 2 ÷ 20 = 5 instances, 6.25 at 80 %.
  assert.deepEqual(recommendedInstances(rates, [work], 32), { prefill: 3, decode: 7, both: 9 });
  assert.deepEqual(recommendedInstances(rates, [work, work], 32), { prefill: 3, decode: 7, both: 9 });
  // Blocks for ten sequences of 1,900 tokens: a step takes 30 ms, 2 × 30 ÷ 10 = 6 instances.
  assert.equal(recommendedInstances(rates, [{ ...work, numBlocks: 600 }], 32)?.decode, 8);
});

test('twice the requests need about twice the instances, and no request one of each', () => {
  const rates = { prompts: 0, rows: 40, pairs: 0, tokens: 4, contextTokens: 4 * 1_900 };
  assert.deepEqual(recommendedInstances(rates, [work], 32), { prefill: 6, decode: 13, both: 18 });
  const none = { prompts: 0, rows: 0, pairs: 0, tokens: 0, contextTokens: 0 };
  assert.deepEqual(recommendedInstances(none, [work], 32), { prefill: 1, decode: 1, both: 1 });
});

test('nothing is recommended while the time of a step is not known, or no sequence fits the target', () => {
  const rates = { prompts: 0.01, rows: 20, pairs: 0, tokens: 2, contextTokens: 2 * 1_900 };
  assert.equal(recommendedInstances(rates, [], 32), undefined);
  assert.equal(recommendedInstances(rates, [{ ...work, pacedStepMs: 0 }], 32), undefined);
  assert.equal(recommendedInstances(rates, [{ ...work, pacedStepMs: 11 }], 32), undefined);
});
