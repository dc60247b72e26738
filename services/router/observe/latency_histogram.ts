/** Quantiles of times in constant memory: counts in buckets that grow by a tenth. */

/** Lower end of the first bucket, in milliseconds. */
const LEAST_MS = 0.05;
const GROWTH = Math.log(1.1);
/** Buckets: up to about a quarter of an hour. */
const NUM_BUCKETS = 176;

/** Counts of times by size; a quantile is right within 5 %. */
export class LatencyHistogram {
  readonly #counts = new Uint32Array(NUM_BUCKETS);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  add(ms: number): void {
    const bucket = ms <= LEAST_MS ? 0 : Math.min(NUM_BUCKETS - 1, Math.floor(Math.log(ms / LEAST_MS) / GROWTH));
    this.#counts[bucket] = (this.#counts[bucket] ?? 0) + 1;
    this.#size++;
  }

  /** Adds the counts of another histogram. */
  merge(other: LatencyHistogram): void {
    if (other.#size === 0) return;
    for (let i = 0; i < NUM_BUCKETS; i++) this.#counts[i] = (this.#counts[i] ?? 0) + (other.#counts[i] ?? 0);
    this.#size += other.#size;
  }

  clear(): void {
    if (this.#size === 0) return;
    this.#counts.fill(0);
    this.#size = 0;
  }

  /** Returns the time in milliseconds that a share of `share` (0 to 1) of the times does not exceed; NaN without times. */
  quantile(share: number): number {
    if (this.#size === 0) return NaN;
    let left = Math.max(1, Math.ceil(share * this.#size));
    for (let bucket = 0; bucket < NUM_BUCKETS; bucket++) {
      left -= this.#counts[bucket] ?? 0;
      // The middle of the bucket.
      if (left <= 0) return LEAST_MS * Math.exp((bucket + 0.5) * GROWTH);
    }
    return NaN;
  }
}
