/** The definition of sampling: that it is the distribution which was asked for. Devices are held against it in conformance/sample.ts. Budget: 10 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import {
  Sampler,
  exp2Table,
  FORBIDDEN,
  IN_PROMPT,
  minWeightOf,
  NO_TOKEN,
  penaltiesOf,
  scaleOf,
  fixedLogitOf,
  type SampleParams,
} from '../../kernels/sampling.ts';
import { HostRowSampler } from '../../kernels/wasm/row_sampler.ts';
import { Random } from '../../shared/base/random.ts';
import { caseOf } from './conformance/sample.ts';

const greedy: SampleParams = {
  log2Scale: undefined,
  minWeight: 1,
  topK: 0,
  topP: 0,
  random: [0, 0],
  penalties: undefined,
};
const at = (temperature: number, more: Partial<SampleParams> = {}): SampleParams => ({
  ...greedy,
  log2Scale: scaleOf(Math.LOG2E / temperature),
  ...more,
});
const topP = (share: number): number => Math.round(share * 2 ** 32);

/** Samples with random words swept evenly and returns each token's share of `numPoints` samples. */
function sharesOf(logits: Float32Array, sample: SampleParams, numPoints: number): number[] {
  const sampler = new Sampler(logits.length);
  const shares = new Array<number>(logits.length).fill(0);
  for (let i = 0; i < numPoints; i++) {
    const high = Math.floor(((i + 0.5) / numPoints) * 2 ** 32);
    shares[sampler.sample(logits, { ...sample, random: [high, 0] })]! += 1 / numPoints;
  }
  return shares;
}

function softmax(logits: ArrayLike<number>, temperature = 1): number[] {
  const highest = Array.from(logits).reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = Array.from(logits, (logit) => Math.exp((logit - highest) / temperature));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

/** The largest difference of a share. */
function apart(a: readonly number[], b: readonly number[]): number {
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0);
}

const POINTS = 20_000;
/** Largest error of an even sweep, which may be off at both ends of a token's interval. */
const BOUND = 1.5 / POINTS;

describe('a sweep of the random words has every token as often as the distribution says', () => {
  const random = new Random(11);
  const rows = [4, 12, 60].map((size) => Float32Array.from({ length: size }, () => random.u32() / 2 ** 29));
  for (const temperature of [0.3, 1, 1.7]) {
    test(`at temperature ${temperature}, and not one that is a tenth of a percent off`, () => {
      for (const logits of rows) {
        const want = softmax(logits, temperature);
        const shares = sharesOf(logits, at(temperature), POINTS);
        expect(apart(shares, want)).toBeLessThan(BOUND);
        // One token a tenth of a percent more likely.
        const favoured = want.indexOf(Math.max(...want));
        const other = want.map((p, i) => (i === favoured ? p + 0.001 : p * (1 - 0.001 / (1 - want[favoured]!))));
        expect(apart(shares, other)).toBeGreaterThan(BOUND);
      }
    });
  }

  test('with top_k, top_p and min_p: what is left of the order, in its proportions', () => {
    const logits = Float32Array.from([0.5, 0.3, 0.15, 0.05], Math.log);
    const cases: [Partial<SampleParams>, number[]][] = [
      [{ topK: 2 }, [0.625, 0.375, 0, 0]],
      [{ topK: 1 }, [1, 0, 0, 0]],
      [{ topK: 9 }, [0.5, 0.3, 0.15, 0.05]],
      [{ topP: topP(0.75) }, [0.625, 0.375, 0, 0]],
      [{ topP: topP(0.81) }, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]],
      [{ topP: 1 }, [1, 0, 0, 0]],
      [{ minWeight: minWeightOf(0.25) }, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]],
      // top_p applies to what top_k leaves.
      [{ topK: 2, topP: topP(0.6) }, [1, 0, 0, 0]],
      [{ topK: 3, topP: topP(0.7) }, [0.625, 0.375, 0, 0]],
    ];
    for (const [more, want] of cases) {
      expect(apart(sharesOf(logits, at(1, more), POINTS), want), JSON.stringify(more)).toBeLessThan(BOUND);
    }
  });

  test('of equal ones the smaller ids are kept', () => {
    const logits = new Float32Array(10);
    const fifth = [0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0, 0, 0];
    expect(apart(sharesOf(logits, at(1, { topK: 5 }), POINTS), fifth)).toBeLessThan(BOUND);
    expect(apart(sharesOf(logits, at(1, { topP: topP(0.45) }), POINTS), fifth)).toBeLessThan(BOUND);
  });
});

test('a large vocabulary: what the tail has together is right to a tenth of a percent, and a flat one is flat', () => {
  const vocab = 32_000;
  const logits = Float32Array.from({ length: vocab }, (_, i) => (i < 10 ? 11 : (i % 7) - 3));
  const want = softmax(logits);
  const sampler = new Sampler(vocab);
  let numTail = 0;
  const numPoints = 2_000;
  for (let i = 0; i < numPoints; i++) {
    if (sampler.sample(logits, at(1, { random: [Math.floor(((i + 0.5) / numPoints) * 2 ** 32), 0] })) >= 10) numTail++;
  }
  const tail = want.slice(10).reduce((a, b) => a + b, 0);
  expect(Math.abs(numTail / numPoints - tail)).toBeLessThan(0.001);
  const flat = new Float32Array(vocab);
  for (const share of [0, 0.25, 0.5, 0.999]) {
    const token = sampler.sample(flat, at(1, { random: [Math.floor(share * 2 ** 32), 0] }));
    expect(Math.abs(token / vocab - share)).toBeLessThan(2 / vocab);
  }
});

describe('the best', () => {
  const best = (logits: readonly number[], sample = greedy, state = {}): number =>
    new Sampler(logits.length).sample(Float32Array.from(logits), sample, state);

  test('of equal logits the smaller id; of logits that are equal in fixed point the higher logit', () => {
    expect(best([1, 5, 5, 2])).toBe(1);
    expect(best([1e-9, 2e-9, 0])).toBe(1);
    expect(best([-0, 0])).toBe(1);
    expect(best([1_500, 1_600, 1_400])).toBe(1);
  });

  test('what is forbidden, or minus infinity, is never it; a NaN makes it no row', () => {
    expect(best([-Infinity, -5_000])).toBe(1);
    expect(best([-Infinity, -Infinity])).toBe(NO_TOKEN);
    expect(best([3, NaN, 1])).toBe(NO_TOKEN);
    expect(best([3, Infinity, 1])).toBe(1);
    expect(best([3, 2, 1], greedy, { bias: Int32Array.of(FORBIDDEN, 0, 0) })).toBe(1);
    expect(best([3, 2, 1], at(1), { allowed: Uint32Array.of(4) })).toBe(2);
    expect(best([3, 2, 1], at(1), { allowed: Uint32Array.of(0) })).toBe(NO_TOKEN);
    expect(best([-Infinity, -Infinity], at(1))).toBe(NO_TOKEN);
  });

  test('repetition looks at prompt and output, presence and frequency at output only', () => {
    const penalised = (logits: number[], counts: number[], ...penalties: Parameters<typeof penaltiesOf>): number =>
      best(logits, { ...greedy, penalties: penaltiesOf(...penalties) }, { counts: Uint32Array.from(counts) });
    expect(penalised([4, 3], [IN_PROMPT, 0], 2, 0, 0)).toBe(1);
    expect(penalised([-3, -4], [IN_PROMPT, 0], 2, 0, 0)).toBe(1);
    expect(penalised([4, 3], [IN_PROMPT, 0], 1, 2, 0)).toBe(0);
    expect(penalised([4, 3], [1, 0], 1, 2, 0)).toBe(1);
    expect(penalised([4, 3], [2, 0], 1, 0, 0.4)).toBe(0);
    expect(penalised([4, 3], [3, 0], 1, 0, 0.4)).toBe(1);
    // Beyond the limit it is the limit, and no overflow.
    expect(penalised([4, 3], [2 ** 31 - 1, 0], 1, 0, 2)).toBe(1);
    expect(penalised([4, 3], [0, 2 ** 31 - 1], 1, 0, -2)).toBe(1);
  });
});

test('fixed-point logits truncate, scales are right to 2^-20, the table of powers is no closer to a half than floats tell apart', () => {
  assert.equal(fixedLogitOf(1.5), 1.5 * 2 ** 20);
  assert.equal(fixedLogitOf(-1e-9), -0);
  assert.equal(fixedLogitOf(5_000), 1_023 * 2 ** 20);
  for (const value of [1e-9, 0.001, 0.7, 1, Math.LOG2E, 1.999999999, 2, 10, 3_000, 2 ** 20]) {
    const { mantissa, shift } = scaleOf(value);
    assert(mantissa < 2 ** 21 && Number.isInteger(mantissa), `${mantissa}`);
    assert(Math.abs((mantissa * 2 ** -shift) / value - 1) < 2 ** -20, `${value}`);
  }
  exp2Table.forEach((weight, i) => {
    const exact = 2 ** (31 - i / 128);
    assert.equal(weight, Math.round(exact));
    if (i % 128 > 0) assert(Math.abs(exact - Math.floor(exact) - 0.5) > 1e-5, `${i}`);
  });
});

test('rows that the host samples from: a thousand samples of every kind are those of the definition', () => {
  for (const vocab of [5, 1_503, 49_152]) {
    const random = new Random(vocab);
    const [sampler, rows] = [new Sampler(vocab), new HostRowSampler(vocab)];
    for (let i = 0; i < (vocab > 10_000 ? 40 : 500); i++) {
      const { logits, sample, ...state } = caseOf(random, vocab);
      assert.equal(rows.sample(logits, sample, state), sampler.sample(logits, sample, state), `case ${i} of ${vocab}`);
    }
  }
});

test('top_k on the host where many fixed-point logits have one weight, over many parts: as the definition has it', () => {
  const vocab = 2_048;
  const random = new Random(12);
  const [sampler, rows] = [new Sampler(vocab), new HostRowSampler(vocab)];
  for (const temperature of [0.05, 0.7, 1, 30, 500]) {
    for (const topK of [1, 2, 3, 5, 7, 8, 9, 40]) {
      for (let i = 0; i < 10; i++) {
        // A few steps of the fixed point apart, or as far as weights go, each part with one that is high.
        const step = random.pick([2 ** -20, 2 ** -14, 2 ** -6, temperature]);
        const logits = Float32Array.from({ length: vocab }, (_, id) => {
          const isHigh = id % 256 === random.below(256) || random.chance(1, 200);
          return (isHigh ? 0 : -18 * temperature) - step * random.below(12);
        });
        const sample = at(temperature, { topK, random: [random.u32(), random.u32()] });
        assert.equal(
          rows.sample(logits, sample, {}),
          sampler.sample(logits, sample, {}),
          `${temperature} ${topK} ${step}`,
        );
      }
    }
  }
});
