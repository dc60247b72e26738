/** Randomness as an input: a seeded generator, so that a failing run can be repeated. */
import { randomInt } from 'node:crypto';

/** Seeded generator of random numbers: equal seeds lead to equal sequences. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** Uniform in [0, 2^32). Mulberry32. */
  u32(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let z = this.#state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return (z ^ (z >>> 14)) >>> 0;
  }

  /** Uniform in [0, bound). */
  below(bound: number): number {
    return Math.floor((this.u32() / 2 ** 32) * bound);
  }

  /** True with probability `numerator / denominator`. */
  chance(numerator: number, denominator: number): boolean {
    return this.below(denominator) < numerator;
  }

  pick<T>(items: readonly [T, ...T[]]): T {
    return items[this.below(items.length)] ?? items[0];
  }
}

/** Returns a seed from the system's entropy; tests never use it. */
export function entropySeed(): number {
  return randomInt(2 ** 32);
}
