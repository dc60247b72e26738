/**
 * An amount that is used over time, summed over the last minute.
 *
 *   slice    n-60  n-59  …  n-1   n           one second each; n is the present one
 *            └──────── the sum ───────┘       at least all that was used in the last 60 s
 *
 * A sliding window rather than a bucket: a bucket that holds a minute's amount lets twice of it through in its first minute, and one that
 * holds less refuses clients that send all at once and then rest. The slice that is a minute old counts whole, so that no minute has more than
 * its amount; a tenant that sends evenly gets a sixtieth less.
 */

const SLICE_MS = 1_000;
/** Slices in a minute. */
const PER_MINUTE = 60;
/** Slices that are summed: those of a minute, and the present one. */
const NUM_SLICES = PER_MINUTE + 1;

/** Sum of what was used in the last minute. Amounts are whole numbers, so that the sum stays exact. */
export class RateWindow {
  readonly #slices = new Float64Array(NUM_SLICES);
  /** Number of the present slice: whole seconds on the clock. */
  #present = 0;
  #sum = 0;

  /** Returns what was used in the last minute. */
  used(nowMs: number): number {
    this.#advance(nowMs);
    return this.#sum;
  }

  /** Uses an amount now. @returns the number of its slice, for {@link release} */
  use(amount: number, nowMs: number): number {
    this.#advance(nowMs);
    this.#add(this.#present, amount);
    return this.#present;
  }

  /** Takes back a part of what was used in a slice; does nothing when the slice is over a minute old. */
  release(amount: number, slice: number, nowMs: number): void {
    this.#advance(nowMs);
    if (slice > this.#present - NUM_SLICES) this.#add(slice, -amount);
  }

  /** Returns the milliseconds until at most `most` of what is used now is left; when all of it must be gone, of what was used last. */
  untilMs(most: number, nowMs: number): number {
    this.#advance(nowMs);
    // Summed from the newest back: the slice that takes the sum over `most` is the last that has to leave.
    for (let [slice, sum] = [this.#present, 0]; slice > this.#present - NUM_SLICES; slice--) {
      sum += this.#slices[indexOf(slice)] ?? 0;
      if (sum > Math.max(0, most)) return (slice + NUM_SLICES) * SLICE_MS - nowMs;
    }
    return 0;
  }

  #add(slice: number, amount: number): void {
    const i = indexOf(slice);
    this.#slices[i] = (this.#slices[i] ?? 0) + amount;
    this.#sum += amount;
  }

  /** Forgets the slices that are over a minute old. */
  #advance(nowMs: number): void {
    const present = Math.floor(nowMs / SLICE_MS);
    if (present <= this.#present) return;
    if (this.#sum === 0 || present - this.#present >= NUM_SLICES) {
      this.#slices.fill(0);
      this.#sum = 0;
      this.#present = present;
      return;
    }
    while (this.#present < present) {
      const i = indexOf(++this.#present);
      this.#sum -= this.#slices[i] ?? 0;
      this.#slices[i] = 0;
    }
  }
}

/** Returns where a slice is kept; the clock of a process may have begun anywhere from 0 on. */
function indexOf(slice: number): number {
  return ((slice % NUM_SLICES) + NUM_SLICES) % NUM_SLICES;
}
