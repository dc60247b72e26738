/**
 * Corrects what policies predict by how earlier requests compared with their predictions.
 *
 * A policy knows the steps of the instances, not the calls and the text around them, nor what other processes take of the same machine.
 * Real times are fitted as a constant and a factor: real = constant + factor × predicted. The correction is for people and metrics; prices
 * and refusals keep what the policy predicted. If refusals used it, a few slow requests could have all others refused, and nothing
 * would be measured any more that could take it back.
 */
import { DecayedSums } from '../base/decayed_sums.ts';
import { solveNonNegative } from '../base/non_negative_solve.ts';
import type { Prediction } from './policy.ts';

/** Share of its weight that a request keeps with each later one: all but 1/e is lost after 16. */
const KEEP = Math.exp(-1 / 16);
/** Relative deviation above which the influence of a request grows no further. */
const MOST_DEVIATION = 0.5;
/** Floor, in ms, of the time that a deviation is divided by. */
const LEAST_MS = 0.1;
/** Values while nothing was measured, with the weight of one request: no constant, the factor 1. They follow the fit by this share. */
const FIRST = [0, 1];
const PRIOR_FOLLOWS = 0.1;

/** Fit of measured times to predicted ones. */
class TimeFit {
  readonly #sums = new DecayedSums(FIRST.length);
  readonly #prior = Float64Array.from(FIRST);
  #constantMs = 0;
  #factor = 1;

  /** Returns the time that is to be expected where `predictedMs` was predicted. */
  corrected(predictedMs: number): number {
    return this.#constantMs + this.#factor * predictedMs;
  }

  /** Learns from a request. Both times are in ms, and finite. */
  learn(predictedMs: number, realMs: number): void {
    const expectedMs = this.corrected(predictedMs);
    const scaleMs = Math.max(expectedMs, 0.1 * realMs, LEAST_MS);
    const deviation = Math.abs(realMs - expectedMs) / scaleMs;
    const share = deviation > MOST_DEVIATION ? MOST_DEVIATION / deviation : 1;
    this.#sums.add(Float64Array.of(1, predictedMs), realMs, share / (scaleMs * scaleMs), KEEP);
    // Deviations of the constant from its prior count by the typical time, those of the factor by themselves.
    const { a, b } = this.#sums.equations(this.#prior, Float64Array.of(this.#sums.meanWeight, 1));
    const [constantMs = 0, factor = 1] = solveNonNegative(a, b);
    const [constantBefore = 0, factorBefore = 1] = this.#prior;
    this.#prior.set([
      constantBefore + PRIOR_FOLLOWS * (constantMs - constantBefore),
      factorBefore + PRIOR_FOLLOWS * (factor - factorBefore),
    ]);
    this.#constantMs = constantMs;
    this.#factor = factor;
  }
}

/** Learns the difference between predicted and real times of one model's requests. */
export class PredictionCorrection {
  readonly #ttft = new TimeFit();
  readonly #tbt = new TimeFit();

  /** Returns the prediction with the times that are to be expected. Waits and cached tokens stay. */
  corrected(prediction: Prediction): Prediction {
    const { ttftMs, tbtMs, totalMs } = prediction;
    const numGaps = tbtMs > 0 ? Math.max(0, totalMs - ttftMs) / tbtMs : 0;
    const first = this.#ttft.corrected(ttftMs);
    const gap = this.#tbt.corrected(tbtMs);
    return { ...prediction, ttftMs: first, tbtMs: gap, totalMs: first + numGaps * gap };
  }

  /** Learns from a request that took `realMs`: to its first token, or from one token to the next in the mean. */
  learn(time: 'ttftMs' | 'tbtMs', prediction: Prediction, realMs: number): void {
    const fit = time === 'ttftMs' ? this.#ttft : this.#tbt;
    fit.learn(prediction[time], realMs);
  }
}
