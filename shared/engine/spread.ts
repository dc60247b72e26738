/**
 * Tracks the 99.95th percentile of actual minus predicted step time, in ms: high enough that the 99th percentile of a sequence's gaps
 * between tokens keeps a target. An estimate moves up by much when it is exceeded and down by little when it is not, so that both balance
 * at the percentile; it needs no list of past values.
 */

const PERCENTILE = 0.9995;
/** Part of the mean deviation that an excess moves the estimate by, and that of a later deviation in that mean. */
const MOVE = 0.5;
const NEW = 0.05;
/** Multiple of the mean deviation that the percentile is at most, but for a short time: that of an exponential distribution is 7.6. */
const MOST = 12;

/** Spread of steps about their predicted durations. */
export class Spread {
  #meanMs = 0;
  #ms = 0;

  /** Milliseconds that a step takes longer than predicted at most, in 1,999 of 2,000 cases; 0 before the first. */
  get ms(): number {
    return this.#ms;
  }

  /** Records by how many milliseconds a step has exceeded its prediction; negative when it was shorter. */
  took(excessMs: number): void {
    this.#meanMs += NEW * (Math.abs(excessMs) - this.#meanMs);
    const move = MOVE * this.#meanMs;
    // One excess never counts for more than itself.
    if (excessMs > this.#ms) this.#ms = Math.min(excessMs, this.#ms + PERCENTILE * move);
    else {
      // An estimate far above the deviations of late was learnt before the prediction was good.
      const excessive = Math.max(0, this.#ms - MOST * this.#meanMs);
      this.#ms = Math.max(0, this.#ms - (1 - PERCENTILE) * move - NEW * excessive);
    }
  }
}
