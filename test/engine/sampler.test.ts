/** What sampling is. Not covered: the statistical quality of Philox, which its authors tested. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { philox4x32, uniformAt } from '../../shared/engine/philox.ts';
import { sample, sampleRequest, type SamplingParams, type Wanted } from '../../shared/engine/sampler.ts';
import type { SampleResult } from '../../kernels/device.ts';
import { greedy } from '../support/reference_loop.ts';

/** What a device would return for these logits. */
function answer(logits: readonly number[], request: Wanted, hasFullRow = request.isFullRowWanted): SampleResult {
  const order = logits.map((logit, token) => ({ logit, token })).sort((a, b) => b.logit - a.logit || a.token - b.token);
  const best = order.slice(0, request.numCandidates);
  return {
    candidateIds: Uint32Array.from(best, ({ token }) => token),
    candidateLogits: Float32Array.from(best, ({ logit }) => logit),
    logSumExp: Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0)),
    askedLogits: Float32Array.from(request.askedTokens, (token) => logits[token] ?? NaN),
    ...(hasFullRow ? { fullRow: Float32Array.from(logits) } : {}),
  };
}

function choose(
  params: Partial<SamplingParams>,
  logits: readonly number[],
  tokens: readonly number[] = [0],
  promptLength = 1,
): number {
  const all = { ...greedy, ...params };
  const context = { tokens, promptLength, stopTokenIds: [] };
  const request = sampleRequest(all, context);
  return sample(all, context, request, answer(logits, request)).token;
}

test('Philox4x32-10 gives the vectors its authors publish', () => {
  assert.deepEqual(philox4x32([0, 0, 0, 0], [0, 0]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
  const ones = 0xffffffff;
  assert.deepEqual(
    philox4x32([ones, ones, ones, ones], [ones, ones]),
    [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
  );
});

test('a token’s random number depends on seed and position only', () => {
  assert.equal(uniformAt(7, 100), uniformAt(7, 100));
  assert.notEqual(uniformAt(7, 100), uniformAt(7, 101));
  assert.notEqual(uniformAt(7, 100), uniformAt(8, 100));
  assert.notEqual(uniformAt(2 ** 32 + 7, 100), uniformAt(7, 100));
});

describe('greedy', () => {
  test('takes the best, and the smaller id of equal ones', () => {
    assert.equal(choose({}, [1, 5, 5, 2]), 1);
  });

  test('with bias and penalties a few candidates decide what the full row would', () => {
    const random = new Random(5);
    for (let round = 0; round < 300; round++) {
      const logits = Array.from({ length: 200 }, () => random.below(1_000) / 100);
      const tokens = Array.from({ length: 1 + random.below(30) }, () => random.below(200));
      const params: SamplingParams = {
        ...greedy,
        presencePenalty: random.below(5) - 2,
        frequencyPenalty: random.below(3) - 1,
        repetitionPenalty: 1 + random.below(3) / 4,
        logitBias: [[random.below(200), random.below(20) - 10]],
      };
      const context = { tokens, promptLength: 1 + random.below(tokens.length), stopTokenIds: [] };
      const request = sampleRequest(params, context);
      assert(!request.isFullRowWanted, 'a few candidates are enough');
      const few = sample(params, context, request, answer(logits, request));
      const all = sample(params, context, request, answer(logits, request, true));
      assert.equal(few.token, all.token);
    }
  });

  test('repetition looks at prompt and output, presence and frequency at output only', () => {
    assert.equal(choose({ repetitionPenalty: 2 }, [4, 3], [0], 1), 1);
    assert.equal(choose({ presencePenalty: 2 }, [4, 3], [0], 1), 0);
    assert.equal(choose({ presencePenalty: 2 }, [4, 3], [9, 0], 1), 1);
    assert.equal(choose({ frequencyPenalty: 0.4 }, [4, 3], [9, 0, 0], 1), 0);
    assert.equal(choose({ frequencyPenalty: 0.4 }, [4, 3], [9, 0, 0, 0], 1), 1);
  });
});

describe('sampling', () => {
  const logits = [Math.log(0.5), Math.log(0.3), Math.log(0.15), Math.log(0.05)];
  const counts = (params: Partial<SamplingParams>): number[] => {
    const seen = [0, 0, 0, 0];
    for (let seed = 0; seed < 4_000; seed++) seen[choose({ temperature: 1, seed, ...params }, logits)]!++;
    return seen.map((count) => count / 4_000);
  };
  const near = (actual: readonly number[], want: readonly number[]): void => {
    want.forEach((p, i) => assert(Math.abs(actual[i]! - p) < 0.03, `${actual.join()} is not ${want.join()}`));
  };

  test('draws by probability', () => near(counts({}), [0.5, 0.3, 0.15, 0.05]));
  test('temperature sharpens', () => near(counts({ temperature: 0.5 }), [0.685, 0.247, 0.062, 0.007]));
  test('top_k keeps k', () => near(counts({ topK: 2 }), [0.625, 0.375, 0, 0]));
  test('top_p keeps the smallest head that reaches it', () => near(counts({ topP: 0.75 }), [0.625, 0.375, 0, 0]));
  test('min_p drops what is too far below the best', () => near(counts({ minP: 0.25 }), [0.526, 0.316, 0.158, 0]));
  test('top_k from candidates is top_k from the full row', () => {
    const random = new Random(9);
    for (let seed = 0; seed < 200; seed++) {
      const row = Array.from({ length: 300 }, () => random.below(10_000) / 1_000);
      const params: SamplingParams = { ...greedy, temperature: 1.3, topK: 20, topP: 0.8, seed };
      const context = { tokens: [1, 2, 3], promptLength: 2, stopTokenIds: [] };
      const request = sampleRequest(params, context);
      assert(!request.isFullRowWanted);
      assert.equal(
        sample(params, context, request, answer(row, request)).token,
        sample(params, context, request, answer(row, request, true)).token,
      );
    }
  });
});

test('log-probabilities are those of the raw logits, whatever was applied', () => {
  const params: SamplingParams = { ...greedy, numLogprobs: 2, logitBias: [[2, 50]] };
  const context = { tokens: [0], promptLength: 1, stopTokenIds: [] };
  const request = sampleRequest(params, context);
  const { token, logprob, top } = sample(
    params,
    context,
    request,
    answer([Math.log(0.6), Math.log(0.3), Math.log(0.1)], request),
  );
  assert.equal(token, 2);
  assert(Math.abs(logprob! - Math.log(0.1)) < 1e-6);
  assert.deepEqual(
    top!.map(([id]) => id),
    [0, 1],
  );
});
