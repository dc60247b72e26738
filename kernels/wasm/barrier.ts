/**
 * A barrier for the threads of one step: spins for a moment, then sleeps.
 *
 * Three cells: [arrived, generation, broken]. The last to arrive opens the next generation. A wake-up costs 60 to 100 µs, a spin of
 * that length would burn a core that another engine may need, so the spin is bounded (20 µs by default).
 */
export class Barrier {
  readonly #cells: Int32Array;
  readonly #numParties: number;
  readonly #numSpins: number;

  constructor(cells: Int32Array, numParties: number, numSpins: number) {
    this.#cells = cells;
    this.#numParties = numParties;
    this.#numSpins = numSpins;
  }

  arrive(): void {
    if (this.#numParties === 1) return;
    const cells = this.#cells;
    const generation = Atomics.load(cells, 1);
    this.#throwIfBroken();
    if (Atomics.add(cells, 0, 1) === this.#numParties - 1) {
      Atomics.store(cells, 0, 0);
      Atomics.store(cells, 1, generation + 1);
      Atomics.notify(cells, 1);
      return;
    }
    for (let spin = 0; spin < this.#numSpins; spin++) {
      if (Atomics.load(cells, 1) !== generation) {
        this.#throwIfBroken();
        return;
      }
    }
    while (Atomics.load(cells, 1) === generation) Atomics.wait(cells, 1, generation);
    this.#throwIfBroken();
  }

  /** Breaks the barrier because this thread failed: every thread that waits now or arrives later throws. */
  break(): void {
    Atomics.store(this.#cells, 2, 1);
    Atomics.add(this.#cells, 1, 1);
    Atomics.notify(this.#cells, 1);
  }

  #throwIfBroken(): void {
    if (Atomics.load(this.#cells, 2) === 1) throw new Error('another thread of this engine failed during the step');
  }
}

/** Number of i32 cells of a {@link Barrier}. */
export const BARRIER_CELLS = 3;

/** Loads per microsecond on this machine, so that a bound in microseconds becomes a count. */
export function spinsPerMicrosecond(): number {
  const cell = new Int32Array(new SharedArrayBuffer(4));
  const start = performance.now();
  for (let spin = 0; spin < 200_000; spin++) Atomics.load(cell, 0);
  return Math.max(1, Math.round(200_000 / ((performance.now() - start) * 1_000)));
}
