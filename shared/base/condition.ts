/** Something that others wait to see changed. */
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

  /** Until `holds`, which is looked at now and after each change, or `signal` aborts. @returns whether it holds. */
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

  /** Until the next change, until `signal` aborts, or so long. @returns whether the time was over first. */
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
