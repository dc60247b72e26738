/** Predictions corrected by measured requests. Budget: 2 s. */
import { expect, test } from 'vitest';
import { PredictionCorrection } from '../../shared/placement/prediction_correction.ts';
import type { Prediction } from '../../shared/placement/policy.ts';
import { Random } from '../../shared/base/random.ts';

const predicted = (ttftMs: number): Prediction => ({
  ttftMs,
  waitMs: 1,
  tbtMs: 2,
  totalMs: ttftMs + 2 * 30,
  cachedTokens: 64,
});

test('before the first request nothing is corrected', () => {
  expect(new PredictionCorrection().corrected(predicted(40))).toEqual(predicted(40));
});

test('a constant and a factor are found from noisy requests, and a changed machine within a few dozen', () => {
  const correction = new PredictionCorrection();
  const random = new Random(3);
  const learn = (real: (ms: number) => number): void => {
    for (let i = 0; i < 80; i++) {
      const ms = 10 + random.below(200);
      correction.learn('ttftMs', predicted(ms), real(ms) * (0.9 + random.below(200) / 1_000));
    }
  };
  learn((ms) => 8 + ms);
  expect(correction.corrected(predicted(10)).ttftMs / 18).closeTo(1, 0.15);
  expect(correction.corrected(predicted(200)).ttftMs / 208).closeTo(1, 0.15);
  learn((ms) => 8 + 3 * ms);
  expect(correction.corrected(predicted(10)).ttftMs / 38).closeTo(1, 0.15);
  expect(correction.corrected(predicted(200)).ttftMs / 608).closeTo(1, 0.15);
});

test('one request that took a hundred times as long changes the others by little', () => {
  const correction = new PredictionCorrection();
  for (let i = 0; i < 40; i++) correction.learn('ttftMs', predicted(20 + (i % 7)), 30 + (i % 7));
  const before = correction.corrected(predicted(22)).ttftMs;
  correction.learn('ttftMs', predicted(22), 3_000);
  expect(correction.corrected(predicted(22)).ttftMs / before).toBeLessThan(1.3);
});

test('the time between tokens is corrected by itself, and the total by both; waits and cached tokens stay', () => {
  const correction = new PredictionCorrection();
  for (let i = 0; i < 60; i++) {
    correction.learn('tbtMs', predicted(50), 4);
    correction.learn('ttftMs', predicted(50), 50);
  }
  const { ttftMs, tbtMs, totalMs, waitMs, cachedTokens } = correction.corrected(predicted(50));
  expect(ttftMs).closeTo(50, 1);
  expect(tbtMs).closeTo(4, 0.2);
  expect(totalMs).closeTo(ttftMs + 30 * tbtMs, 1e-6);
  expect([waitMs, cachedTokens]).toEqual([1, 64]);
});
