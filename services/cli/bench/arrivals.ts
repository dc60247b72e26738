/** Times of arrival: a fixed rate with gaps by a gamma distribution, or a rate that grows. The arithmetic is that of `vllm bench serve`. */
import type { Random } from '../../../shared/base/random.ts';

/** A rate that grows from the first request to the last. */
export interface RampUp {
  readonly kind: 'linear' | 'exponential';
  readonly startPerSecond: number;
  readonly endPerSecond: number;
}

/** How requests arrive. */
export interface ArrivalRate {
  /** Requests per second; Infinity: all at once. */
  readonly ratePerSecond: number;
  /** Shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts, Infinity is even. */
  readonly burstiness: number;
  readonly rampUp: RampUp | undefined;
}

/**
 * Returns when each of `numRequests` arrives, in milliseconds after the start, ascending. At a fixed rate the times are stretched so that the last
 * one is at `numRequests / rate`, whatever the seed.
 */
export function arrivalTimes(numRequests: number, rate: ArrivalRate, random: Random): Float64Array {
  const times = new Float64Array(numRequests);
  let atMs = 0;
  for (let i = 0; i < numRequests; i++) {
    const perSecond = rateAt(i, numRequests, rate);
    if (Number.isFinite(perSecond)) atMs += (1_000 / perSecond) * gap(rate.burstiness, random);
    times[i] = atMs;
  }
  if (rate.rampUp || atMs === 0) return times;
  const factor = (1_000 * numRequests) / rate.ratePerSecond / atMs;
  return times.map((ms) => ms * factor);
}

function rateAt(index: number, numRequests: number, { ratePerSecond, rampUp }: ArrivalRate): number {
  if (!rampUp) return ratePerSecond;
  const share = index / Math.max(1, numRequests - 1);
  const { kind, startPerSecond, endPerSecond } = rampUp;
  return kind === 'linear'
    ? startPerSecond + (endPerSecond - startPerSecond) * share
    : startPerSecond * (endPerSecond / startPerSecond) ** share;
}

/** Returns a gap with a mean of 1. */
function gap(shape: number, random: Random): number {
  return Number.isFinite(shape) ? gamma(shape, random) / shape : 1;
}

/** Uniform in (0, 1). */
function uniform(random: Random): number {
  return (random.u32() + 0.5) / 2 ** 32;
}

/** Returns a sample of the standard normal distribution, by Box and Muller. */
function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(uniform(random))) * Math.cos(2 * Math.PI * uniform(random));
}

/** Returns a sample of the gamma distribution with scale 1, by a method of 2000 (ACM TOMS 26, 363). */
function gamma(shape: number, random: Random): number {
  // Below 1 the method does not hold; a sample of the next shape, scaled, has the distribution.
  if (shape < 1) return gamma(shape + 1, random) * uniform(random) ** (1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = normal(random);
    const v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(uniform(random)) < x ** 2 / 2 + d * (1 - v + Math.log(v))) return d * v;
  }
}
