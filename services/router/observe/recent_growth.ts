/** Growth of a count within a time, from values that are looked at now and then. */

/** Steps of the time in which growth is remembered; the oldest step ends as a whole. */
const STEPS = 6;

/** Growth of one count over the last moments. A count that falls has been started anew, and its value is new growth. */
export class RecentGrowth {
  readonly #steps = new Float64Array(STEPS);
  #step = 0;
  #last: number | undefined;

  /** Records the count's value, and returns its growth within the last `ms` before `nowMs`. The first value is no growth. */
  within(value: number, ms: number, nowMs: number): number {
    const step = Math.floor(nowMs / (ms / STEPS));
    for (let skipped = Math.max(this.#step + 1, step - STEPS + 1); skipped <= step; skipped++)
      this.#steps[skipped % STEPS] = 0;
    this.#step = Math.max(this.#step, step);
    const before = this.#last ?? value;
    this.#steps[this.#step % STEPS] =
      (this.#steps[this.#step % STEPS] ?? 0) + (value < before ? value : value - before);
    this.#last = value;
    return this.#steps.reduce((sum, growth) => sum + growth, 0);
  }
}
