/** From a request's parameters to samples. What a sample is: test/kernels/sampling.test.ts. Not covered: the statistical quality of Philox, which its authors tested. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Sampler, FORBIDDEN, IN_PROMPT, fixedLogitOf } from '../../kernels/sampling.ts';
import type { SampleResult } from '../../kernels/device.ts';
import { philox4x32, randomAt } from '../../shared/engine/philox.ts';
import { LogitAdjustments, SequenceSampling, numCandidatesOf, sampledToken } from '../../shared/engine/sampler.ts';
import { neutralSampling, type Sampling } from '../../shared/protocol/request.ts';
import { packSeed } from '../../shared/protocol/packing.ts';
import { samplingOf, type TestSampling } from '../support/request.ts';

const keyOfSeed = (seed: bigint | number): [number, number] => {
  const { seedLow, seedHigh } = packSeed(BigInt(seed));
  return [seedLow, seedHigh];
};

test('Philox4x32-10 gives the vectors its authors publish', () => {
  assert.deepEqual(philox4x32([0, 0, 0, 0], [0, 0]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
  const ones = 0xffffffff;
  assert.deepEqual(
    philox4x32([ones, ones, ones, ones], [ones, ones]),
    [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
  );
});

test('a token’s random words depend on seed and position only', () => {
  const at = (seed: bigint | number, position: number): number[] => randomAt(keyOfSeed(seed), position);
  assert.deepEqual(at(7, 100), at(7, 100));
  assert.notDeepEqual(at(7, 100), at(7, 101));
  assert.notDeepEqual(at(7, 100), at(8, 100));
  assert.notDeepEqual(at(2 ** 32 + 7, 100), at(7, 100));
});

test('every seed of 64 bits has a stream of its own, and its number is its key in two’s complement', () => {
  assert.deepEqual(keyOfSeed(-1n), [0xffffffff, 0xffffffff]);
  assert.deepEqual(keyOfSeed(-(2n ** 63n)), [0, 0x80000000]);
  assert.deepEqual(keyOfSeed(2n ** 63n - 1n), [0xffffffff, 0x7fffffff]);
  assert.deepEqual(keyOfSeed(2n ** 53n + 1n), [1, 2 ** 21]);
  assert.deepEqual(keyOfSeed(-5), keyOfSeed(-5n));
});

test('over seeds and over positions tokens come as often as they should', () => {
  const logits = Float32Array.from([0.5, 0.3, 0.15, 0.05], Math.log);
  const sampler = new Sampler(4);
  const numSamples = 100_000;
  for (const random of [(i: number) => randomAt(keyOfSeed(i), 5), (i: number) => randomAt(keyOfSeed(5), i)]) {
    const sample = new SequenceSampling({ ...neutralSampling, temperature: 1 }).at(0);
    const counts = [0, 0, 0, 0];
    for (let i = 0; i < numSamples; i++) counts[sampler.sample(logits, { ...sample, random: random(i) })]!++;
    const distance = counts.reduce((sum, count, i) => {
      const want = numSamples * Math.exp(logits[i]!);
      return sum + (count - want) ** 2 / want;
    }, 0);
    // Chi-squared with three degrees of freedom: a sound sampler exceeds this value once in ten thousand runs.
    expect(distance).toBeLessThan(21.1);
  }
});

describe('parameters become sample parameters', () => {
  const sample = (params: Partial<TestSampling>): ReturnType<SequenceSampling['at']> =>
    new SequenceSampling(samplingOf(params)).at(9);

  test('temperature 0 is greedy, neutral values cut nothing', () => {
    expect(sample({})).toMatchObject({ log2Scale: undefined, minWeight: 1, topK: 0, topP: 0, penalties: undefined });
    expect(sample({ temperature: 1 }).log2Scale).toEqual({ mantissa: Math.round(Math.LOG2E * 2 ** 20), shift: 20 });
  });

  test('cuts', () => {
    expect(sample({ topP: 0.9 }).topP).toBe(Math.round(0.9 * 2 ** 32));
    expect(sample({ topP: 1e-12 }).topP).toBe(1);
    expect(sample({ topP: 1 - 1e-12 }).topP).toBe(2 ** 32 - 1);
    expect(sample({ topK: 40, minP: 0.5 })).toMatchObject({ topK: 40, minWeight: 2 ** 30 });
  });

  test('penalties are there when one is not neutral', () => {
    for (const one of [{ presencePenalty: 1 }, { frequencyPenalty: -1 }, { repetitionPenalty: 1.1 }])
      expect(sample(one).penalties).toBeDefined();
  });
});

test('every field of a request’s sampling has an effect', () => {
  const base: Sampling = { ...neutralSampling, temperature: 1, biasTokens: [1], biasValues: [1] };
  const others: { readonly [F in keyof Sampling]: Sampling[F] } = {
    temperature: 0.5,
    topP: 0.5,
    topK: 2,
    minP: 0.5,
    presencePenalty: 1,
    frequencyPenalty: 1,
    repetitionPenalty: 2,
    biasTokens: [2],
    biasValues: [2],
    seedLow: 1,
    seedHigh: 1,
    numLogprobs: 2,
    minTokens: 1,
  };
  const effectsOf = (sampling: Sampling): unknown[] => {
    const context = { tokens: [1, 2], promptLength: 2, stopTokenIds: [3] };
    const { bias, counts } = new LogitAdjustments(sampling, context, 6);
    return [new SequenceSampling(sampling).at(9), bias, counts, numCandidatesOf(sampling)];
  };
  for (const [field, value] of Object.entries(others))
    assert.notDeepEqual(effectsOf({ ...base, [field]: value }), effectsOf(base), field);
});

describe('what a sequence remembers', () => {
  const adjustmentsOf = (params: Partial<TestSampling>, tokens: number[], promptLength: number): LogitAdjustments =>
    new LogitAdjustments(samplingOf(params), { tokens, promptLength, stopTokenIds: [3] }, 6);

  test('nothing that nobody asked for', () => {
    const adjustments = adjustmentsOf({}, [1, 2], 2);
    expect([adjustments.bias, adjustments.counts]).toEqual([undefined, undefined]);
  });

  test('counts of the output; prompts only for repetition', () => {
    expect([...adjustmentsOf({ presencePenalty: 1 }, [1, 2, 2, 4], 2).counts!]).toEqual([0, 0, 1, 0, 1, 0]);
    const adjustments = adjustmentsOf({ repetitionPenalty: 2 }, [1, 2, 2, 4], 2);
    adjustments.count(5);
    expect([...adjustments.counts!]).toEqual([0, IN_PROMPT, IN_PROMPT + 1, 0, 1, 1]);
  });

  test('the same whether it is built from the tokens or told of them', () => {
    const params = { frequencyPenalty: 1, repetitionPenalty: 1.2 };
    const notified = adjustmentsOf(params, [1, 2], 2);
    for (const token of [5, 2, 5]) notified.count(token);
    expect(notified.counts).toEqual(adjustmentsOf(params, [1, 2, 5, 2, 5], 2).counts);
  });

  test('stop tokens are forbidden until enough came, then have their own bias', () => {
    const adjustments = adjustmentsOf(
      {
        minTokens: 2,
        logitBias: [
          [3, 1.5],
          [1, -2],
        ],
      },
      [0, 0, 0],
      2,
    );
    expect([...adjustments.bias!]).toEqual([0, fixedLogitOf(-2), 0, FORBIDDEN, 0, 0]);
    expect(adjustments.changesAt(3, false)).toEqual([]);
    expect(adjustments.changesAt(4, false)).toEqual([[3, fixedLogitOf(1.5)]]);
    expect(adjustments.bias![3]).toBe(fixedLogitOf(1.5));
    expect(adjustments.changesAt(5, false)).toEqual([]);
    // Enough came before, as after a preemption: nothing is biased.
    expect(adjustmentsOf({ minTokens: 2 }, [0, 0, 0, 0], 2).bias).toBeUndefined();
  });
});

test('log-probabilities are those of the raw logits, whatever was applied', () => {
  const params = samplingOf({ numLogprobs: 2, logitBias: [[2, 50]] });
  expect([
    numCandidatesOf(params),
    numCandidatesOf({ ...params, numLogprobs: 0 }),
    numCandidatesOf(neutralSampling),
  ]).toEqual([2, 1, 0]);
  const logits = [0.6, 0.3, 0.1].map(Math.log);
  const result: SampleResult = {
    token: 2,
    tokenLogit: logits[2]!,
    logSumExp: 0,
    askedLogits: new Float32Array(0),
    candidateIds: Uint32Array.of(0, 1),
    candidateLogits: Float32Array.of(logits[0]!, logits[1]!),
  };
  const { token, position, logprob, topTokens } = sampledToken(params, 7, 2, logits[2]!, result);
  assert.deepEqual([token, position], [2, 7]);
  assert(Math.abs(logprob[0]! - Math.log(0.1)) < 1e-6);
  assert.deepEqual(topTokens, [0, 1]);
  assert.deepEqual(sampledToken(neutralSampling, 7, 1, 0, result), {
    token: 1,
    position: 7,
    logprob: [],
    topTokens: [],
    topLogprobs: [],
  });
});
