/** Condition variable for asynchronous code of one thread. */
import type { Clock } from './clock.ts';
import { DONE } from './signal.ts';

/** A change that others wait for: notify() wakes every waiter once, and the waiter checks its own state again. */
export class Condition {
  readonly #waiting = new Set<() => void>();

  get numWaiting(): number {
    return this.#waiting.size;
  }

  /** Resolves at the next change. */
  changed(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.add(resolve);
    });
  }

  /** Wakes all waiters, who then look again at what they wait for. */
  notify(): void {
    if (this.#waiting.size === 0) return;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const wake of waiting) wake();
  }

  /** Waits until `holds` returns true, or `signal` aborts; checks now and after each change. @returns whether it holds. */
  async until(holds: () => boolean, signal?: AbortSignal): Promise<boolean> {
    if (holds()) return true;
    const notify = (): void => {
      this.notify();
    };
    signal?.addEventListener('abort', notify);
    try {
      while (!holds()) {
        if (signal?.aborted) return false;
        await this.changed();
      }
      return true;
    } finally {
      signal?.removeEventListener('abort', notify);
    }
  }

  /** Waits for the next change, at most `ms` milliseconds, or until `signal` aborts. @returns whether the time ran out first. */
  async within(ms: number, clock: Pick<Clock, 'sleep'>, signal: AbortSignal): Promise<boolean> {
    const woken = new AbortController();
    const wake = (): void => {
      woken.abort(DONE);
    };
    this.#waiting.add(wake);
    signal.addEventListener('abort', wake, { once: true });
    if (signal.aborted) wake();
    await clock.sleep(ms, woken.signal);
    signal.removeEventListener('abort', wake);
    this.#waiting.delete(wake);
    return !woken.signal.aborted;
  }
}
