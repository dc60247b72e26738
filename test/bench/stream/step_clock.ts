/**
 * Clock of an engine that decodes all open sequences together: one step every 1/30 s, in which each sequence emits one token. A step that
 * is late is not made up for, and an engine does not wait for those who read. Until the benchmark starts the clock, a sequence has its first
 * token only: a router that cannot carry all streams could not open them either.
 */

/** Steps of the engine, and so tokens of a stream, in a second. */
export const STEPS_PER_SECOND = 30;
/** Seeds from here on belong to streams whose reader stops. */
export const FIRST_STALLED_SEED = 1_000_000;
/**
 * Tokens a step, and in all, of a stream whose reader stops: kernels hold 4 MB of a connection on one machine, 16,000 events, and only a
 * stream that fills them waits for its reader.
 */
const STALLED_TOKENS_A_STEP = 64;
const STALLED_TOKENS = 24_000;

/** A sequence of the engine. */
export interface ClockedSequence {
  readonly seed: number;
  /** Index of its next output token. */
  next: number;
  /** Output tokens at most. */
  readonly limit: number;
  /** Sends output token `index`. */
  readonly emit: (index: number, isLast: boolean) => void;
}

/** The steps of one engine, from its first sequence on. */
export class StepClock {
  readonly #sequences = new Set<ClockedSequence>();
  #isStarted = false;
  #nextMs = 0;
  #timer: NodeJS.Timeout | undefined;

  /** Open sequences. */
  get numOpen(): number {
    return this.#sequences.size;
  }

  /** Lets all sequences go on after their first tokens. */
  start(): void {
    this.#isStarted = true;
  }

  add(sequence: ClockedSequence): void {
    this.#sequences.add(sequence);
    if (this.#timer) return;
    this.#nextMs = performance.now();
    this.#schedule();
  }

  remove(sequence: ClockedSequence): void {
    this.#sequences.delete(sequence);
  }

  #schedule(): void {
    this.#nextMs = Math.max(this.#nextMs + 1_000 / STEPS_PER_SECOND, performance.now());
    this.#timer = setTimeout(() => {
      for (const sequence of this.#sequences) this.#step(sequence);
      this.#schedule();
    }, this.#nextMs - performance.now());
  }

  #step(sequence: ClockedSequence): void {
    const isStalled = sequence.seed >= FIRST_STALLED_SEED;
    const limit = isStalled ? Math.min(sequence.limit, STALLED_TOKENS) : sequence.limit;
    const end = Math.min(
      limit,
      sequence.next + (isStalled ? STALLED_TOKENS_A_STEP : 1),
      this.#isStarted ? Infinity : 1,
    );
    while (sequence.next < end) {
      const index = sequence.next++;
      sequence.emit(index, index + 1 === sequence.limit);
    }
  }
}

/** Starts the clock when the parent asks, answers each of its messages with the number of open sequences, and ends with the parent. */
export function obeyParent(clock: StepClock): void {
  process.on('message', (message: 'start' | 'count') => {
    if (message === 'start') clock.start();
    process.send?.(clock.numOpen);
  });
  process.once('disconnect', () => process.exit());
}
