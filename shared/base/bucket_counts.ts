/** Counts of observed values in buckets, and their sum: what a Prometheus histogram is made of. */

/** Observed values since the start: how many fell into each bucket, the last one being for values above every bound; trailing zeros are left out. */
export interface BucketState {
  readonly counts: readonly number[];
  readonly sum: number;
}

/** Counts observed values by buckets. An observation costs one search over the bounds and allocates nothing. */
export class BucketCounts {
  readonly bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;

  /** `bounds`: the upper bounds of the buckets, inclusive and rising. */
  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.#counts = new Array<number>(bounds.length + 1).fill(0);
  }

  observe(value: number): void {
    let at = 0;
    while (at < this.bounds.length && value > (this.bounds[at] ?? 0)) at++;
    this.#counts[at] = (this.#counts[at] ?? 0) + 1;
    this.#sum += value;
  }

  /** A copy of the counts, without trailing zeros, and the sum. */
  get state(): BucketState {
    let length = this.#counts.length;
    while (length > 0 && this.#counts[length - 1] === 0) length--;
    return { counts: this.#counts.slice(0, length), sum: this.#sum };
  }
}
