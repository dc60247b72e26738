import { setImmediate } from 'node:timers';
import type { Clock } from '../../shared/base/clock.ts';

interface Sleeper {
  readonly atMs: number;
  /** Breaks ties, so that equal times wake in the order they were set. */
  readonly order: number;
  readonly wake: () => void;
}

/** Time that moves only when nothing else can: an hour costs what its events cost. */
export class SimulatedClock implements Clock {
  #nowMs = 0;
  #order = 0;
  readonly #sleepers = new Set<Sleeper>();

  nowMs(): number {
    return this.#nowMs;
  }

  wallMs(): number {
    return this.#nowMs;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted) {
        resolve();
        return;
      }
      const wake = (): void => {
        this.#sleepers.delete(sleeper);
        signal?.removeEventListener('abort', wake);
        resolve();
      };
      const sleeper = { atMs: this.#nowMs + ms, order: this.#order++, wake };
      this.#sleepers.add(sleeper);
      signal?.addEventListener('abort', wake);
    });
  }

  turn(): Promise<void> {
    return this.sleep(0);
  }

  /** Wakes sleepers in time order until none is due by `untilMs`. */
  async run(untilMs: number): Promise<void> {
    for (;;) {
      await promisesSettled();
      const next = [...this.#sleepers].sort((a, b) => a.atMs - b.atMs || a.order - b.order)[0];
      if (!next || next.atMs > untilMs) break;
      this.#nowMs = next.atMs;
      next.wake();
    }
    this.#nowMs = untilMs;
  }
}

/** An immediate runs after every promise job that is queued, and those they queue. */
function promisesSettled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
