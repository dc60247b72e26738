/** Coefficients that are fitted to steps of known cost. Budget: 1 s. */
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { StepTimes } from '../../shared/engine/step_budget.ts';
import { priorOf, StepFit, workOf } from '../../shared/engine/step_fit.ts';
import { pairsOf, stepMs, type StepTime, type StepWork } from '../../shared/protocol/instance_work.ts';

const truth: StepTime = { constantMs: 8, rowMs: 0.05, pairMs: 4e-6, contextMs: 1e-4, sequenceMs: 0.1 };
const slower = Object.fromEntries(Object.entries(truth).map(([name, ms]) => [name, 3 * ms])) as StepTime;

/** Steps that the warm-up of such a device measures. */
function firstOf(time: StepTime): StepTimes[] {
  const one = (tokenRows: number, start: number, promptRows: number): StepTimes => {
    const work = { pairs: pairsOf(start, promptRows), contextTokens: tokenRows * (start + 1), sequences: 1 };
    return { tokenRows, promptRows, ...work, ms: stepMs(time, { rows: tokenRows + promptRows, ...work }) };
  };
  return [one(1, 64, 0), one(0, 0, 64), one(1, 2_048, 0), one(0, 2_048, 64)];
}

const random = new Random(11);
const uniform = (): number => random.below(1 << 20) / (1 << 20);

/** Steps of an engine: chats that decode, and a prompt with them now and then. */
function workAt(step: number, hasPrompts: boolean): StepWork {
  const sequences = 1 + random.below(32);
  const contextTokens = sequences * (200 + random.below(4_000));
  if (!hasPrompts || step % 3 > 0) return { rows: sequences, pairs: 0, contextTokens, sequences };
  const [start, count] = [random.below(30_000), 4 + random.below(508)];
  return { rows: sequences + count, pairs: pairsOf(start, count), contextTokens, sequences: sequences + 1 };
}

function run(fit: StepFit, time: StepTime, numSteps: number, hasPrompts = true, noise = 0.1): void {
  for (let step = 0; step < numSteps; step++) {
    const work = workAt(step, hasPrompts);
    const ms = stepMs(time, work) * (1 + noise * (2 * uniform() - 1));
    fit.took(work, ms, work.pairs > 0);
  }
}

/** Largest relative error of a prediction. */
function worst(fit: StepFit, time: StepTime, hasPrompts = true): number {
  const errors = Array.from({ length: 300 }, (_, step) => {
    const work = workAt(step, hasPrompts);
    return Math.abs(stepMs(fit.time, work) / stepMs(time, work) - 1);
  });
  return Math.max(...errors);
}

const deep: StepWork = { rows: 512, pairs: pairsOf(90_000, 512), contextTokens: 0, sequences: 1 };

describe('coefficients', () => {
  test('are those of the steps, with noise and without a start-up measurement', () => {
    const fit = new StepFit();
    run(fit, truth, 1_000);
    expect(worst(fit, truth)).toBeLessThan(0.06);
    for (const name of ['constantMs', 'rowMs', 'pairMs', 'contextMs'] as const)
      expect(fit.time[name] / truth[name], name).toBeCloseTo(1, 0);
  });

  test('are those of the start-up measurement before the first step, and soon after it where it was wrong', () => {
    const fit = new StepFit(firstOf(truth));
    expect(worst(fit, truth)).toBeLessThan(0.3);
    expect(stepMs(fit.time, deep) / stepMs(truth, deep)).toBeCloseTo(1, 1);
    const misled = new StepFit(firstOf(slower));
    run(misled, truth, 60);
    expect(worst(misled, truth)).toBeLessThan(0.3);
  });

  test('follow a device that turns slower, and one that turns faster', () => {
    const fit = new StepFit(firstOf(truth));
    run(fit, truth, 2_000);
    run(fit, slower, 1_000);
    expect(worst(fit, slower)).toBeLessThan(0.2);
    run(fit, truth, 2_000);
    expect(worst(fit, truth)).toBeLessThan(0.2);
  });

  test('are never negative, though all columns change together and the noise is large', () => {
    const fit = new StepFit();
    for (let step = 0; step < 500; step++) {
      const sequences = 4 + (step % 2);
      const work = { rows: sequences, pairs: 0, contextTokens: 100 * sequences, sequences };
      fit.took(work, 10 + 6 * (uniform() - 0.5), false);
      for (const ms of Object.values(fit.time)) expect(ms).toBeGreaterThanOrEqual(0);
    }
    const work = { rows: 4, pairs: 0, contextTokens: 400, sequences: 4 };
    expect(stepMs(fit.time, work)).toBeGreaterThan(9);
    expect(stepMs(fit.time, work)).toBeLessThan(11);
  });

  test('of prompts stay as they were while sequences only decode', () => {
    const fit = new StepFit(firstOf(truth));
    run(fit, truth, 5_000, false);
    expect(fit.time.pairMs).toBeCloseTo(truth.pairMs, 7);
    expect(worst(fit, truth, false)).toBeLessThan(0.06);
    // Those that were learnt stay as well as those of the start.
    const learnt = new StepFit(firstOf(slower));
    run(learnt, truth, 3_000);
    run(learnt, truth, 20_000, false);
    expect(stepMs(learnt.time, deep) / stepMs(truth, deep)).toBeCloseTo(1, 0);
  });

  test('do not follow pauses of the process', () => {
    const fit = new StepFit(firstOf(truth));
    for (let round = 0; round < 60; round++) {
      run(fit, truth, 24);
      const work = workAt(round, true);
      fit.took(work, stepMs(truth, work) + 1_000, work.pairs > 0);
    }
    expect(worst(fit, truth)).toBeLessThan(0.15);
  });
});

test('the spread is what nearly all steps with prompts stay within, and not much more', () => {
  const fit = new StepFit(firstOf(truth));
  run(fit, truth, 3_000);
  let numWithin = 0;
  for (let step = 0; step < 300; step++) {
    const work = workAt(0, true);
    const ms = stepMs(truth, work) * (1 + 0.1 * (2 * uniform() - 1));
    if (ms <= stepMs(fit.time, work) + fit.spreadMs) numWithin++;
  }
  expect(numWithin).toBeGreaterThan(294);
  expect(fit.spreadMs).toBeLessThan(0.3 * stepMs(truth, workAt(0, true)));
  const quiet = new StepFit(firstOf(truth));
  run(quiet, truth, 3_000, true, 0);
  expect(quiet.spreadMs).toBeLessThan(1);
});

test('the steps of the warm-up give a prior; where no long prompt was measured, its pairs count as tokens of KV', () => {
  const [token, prompt, longToken] = firstOf(truth);
  const prior = priorOf(firstOf(truth))!;
  // A single sequence is part of every one of them, so its cost is in the constant.
  expect(prior.constantMs).toBeCloseTo(truth.constantMs + truth.sequenceMs, 6);
  for (const name of ['rowMs', 'pairMs', 'contextMs'] as const) expect(prior[name] / truth[name]).toBeCloseTo(1, 6);
  const short = priorOf([token!, prompt!, longToken!])!;
  expect(short.pairMs).toBe(short.contextMs);
  expect(priorOf([token!])).toBeUndefined();
  expect(priorOf([])).toBeUndefined();
});

test('the work of a step is counted from the rows of its sequences', () => {
  const rows = [
    { start: 99, count: 1, sampled: [100] },
    { start: 64, count: 8, sampled: [] },
    { start: 10, count: 2, sampled: [12] },
    // One of several samples of the prompt above, which starts from its row.
    { start: 12, count: 0, sampled: [12] },
  ];
  expect(workOf(rows)).toEqual({ rows: 11, pairs: 8 * 64 + 36 + 20 + 3, contextTokens: 100, sequences: 4 });
});
