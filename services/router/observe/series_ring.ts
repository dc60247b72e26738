/** Values of several series at equal distances of time, the oldest overwritten. */

/** Ring of `numSlots` moments, each with a value of every series; NaN where there is none. */
export class SeriesRing {
  readonly stepMs: number;
  readonly numSlots: number;
  readonly #numSeries: number;
  /** Value of series s in slot n at `(n % numSlots) * numSeries + s`. */
  readonly #values: Float32Array;
  #last = -1;
  #first = -1;

  constructor(numSeries: number, stepMs: number, numSlots: number) {
    this.stepMs = stepMs;
    this.numSlots = numSlots;
    this.#numSeries = numSeries;
    this.#values = new Float32Array(numSeries * numSlots);
  }

  /** Bytes that a ring takes. */
  static bytes(numSeries: number, numSlots: number): number {
    return numSeries * numSlots * Float32Array.BYTES_PER_ELEMENT;
  }

  /** First and last slot that can have values; -1 before the first one is written. */
  get range(): readonly [first: number, last: number] {
    return [Math.max(this.#first, this.#last - this.numSlots + 1), this.#last];
  }

  /** Writes the values of a slot, which comes after all that were written; slots that were left out have no values. */
  write(slot: number, values: ArrayLike<number>): void {
    if (slot <= this.#last) return;
    if (this.#first < 0) this.#first = slot;
    const from = this.#last < 0 ? slot : Math.max(this.#last + 1, slot - this.numSlots + 1);
    for (let skipped = from; skipped < slot; skipped++) {
      const at = (skipped % this.numSlots) * this.#numSeries;
      this.#values.fill(NaN, at, at + this.#numSeries);
    }
    this.#values.set(values, (slot % this.numSlots) * this.#numSeries);
    this.#last = slot;
  }

  /** Returns the value of a series in a slot; NaN where there is none. */
  get(slot: number, series: number): number {
    const [first, last] = this.range;
    if (slot < first || slot > last || slot < 0) return NaN;
    return this.#values[(slot % this.numSlots) * this.#numSeries + series] ?? NaN;
  }

  /** Returns the mean of a series over the slots [from, to); NaN without values. */
  mean(from: number, to: number, series: number): number {
    let [sum, count] = [0, 0];
    for (let slot = from; slot < to; slot++) {
      const value = this.get(slot, series);
      if (Number.isNaN(value)) continue;
      sum += value;
      count++;
    }
    return count === 0 ? NaN : sum / count;
  }
}
