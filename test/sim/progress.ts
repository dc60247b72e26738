/** How far a run of seeds is, and how long it still takes: one line that stays in place on a terminal, a line now and then elsewhere. */

/** Milliseconds between two lines. */
const TERMINAL_MS = 1_000;
const FILE_MS = 30_000;

export class Progress {
  readonly #total: number;
  readonly #untilMs: number;
  readonly #startMs = performance.now();
  readonly #isTerminal = process.stderr.isTTY;
  #shownMs = this.#startMs;
  #numDone = 0;
  numFailed = 0;

  /** The run ends with its `total`, or no seed begins after `untilMs`. */
  constructor({ total, untilMs }: { readonly total: number; readonly untilMs: number }) {
    this.#total = total;
    this.#untilMs = untilMs;
  }

  /** Counts a seed that has ended. */
  count(): void {
    this.#numDone++;
    const nowMs = performance.now();
    if (nowMs - this.#shownMs < (this.#isTerminal ? TERMINAL_MS : FILE_MS)) return;
    this.#shownMs = nowMs;
    const seedMs = (nowMs - this.#startMs) / this.#numDone;
    const leftMs = Math.min(seedMs * (this.#total - this.#numDone), Math.max(0, this.#untilMs - nowMs));
    const line = `${this.#numDone} of ${this.#total} seeds, ${this.numFailed} failed, ${seedMs.toFixed(0)} ms a seed, ${duration(leftMs)} left`;
    process.stderr.write(this.#isTerminal ? `\r\x1b[K${line}` : `${line}\n`);
  }

  /** Makes room for another line. */
  clear(): void {
    if (this.#isTerminal) process.stderr.write('\r\x1b[K');
  }
}

function duration(ms: number): string {
  const seconds = Math.ceil(ms / 1_000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}
