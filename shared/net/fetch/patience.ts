/** How long a fetch waits for a holder that says nothing. */
import type { Clock } from '../../base/clock.ts';
import { DONE } from '../../base/signal.ts';

/** Watchdog of a fetch: calls `onEnd` when a holder sends nothing for `ms` milliseconds. */
export class Patience {
  readonly #clock: Pick<Clock, 'sleep'>;
  /** Milliseconds without a message before the watchdog fires; undefined: never, since the holder may be computing. */
  readonly #ms: number | undefined;
  readonly #onEnd: (ms: number) => void;

  constructor(clock: Pick<Clock, 'sleep'>, ms: number | undefined, onEnd: (ms: number) => void) {
    this.#clock = clock;
    this.#ms = ms;
    this.#onEnd = onEnd;
  }

  /**
   * Awaits `awaited`, and calls `onEnd` when it takes longer than `ms`. While `isGoingOn` reports that other data is on its way, the
   * wait starts again.
   */
  async watch<T>(awaited: Promise<T>, isGoingOn: () => boolean): Promise<T> {
    const ms = this.#ms;
    if (ms === undefined) return awaited;
    const answered = new AbortController();
    void this.#watch(ms, answered.signal, isGoingOn);
    try {
      return await awaited;
    } finally {
      answered.abort(DONE);
    }
  }

  async #watch(ms: number, answered: AbortSignal, isGoingOn: () => boolean): Promise<void> {
    do await this.#clock.sleep(ms, answered);
    while (!answered.aborted && isGoingOn());
    if (!answered.aborted) this.#onEnd(ms);
  }
}
