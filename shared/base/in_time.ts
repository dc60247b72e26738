/** Limits in time for work that another thread does. */
import type { Clock } from './clock.ts';
import { DONE } from './signal.ts';

/** Result of {@link inTime} when the work has not ended in time. */
export const LATE = Symbol('late');

/** Resolves as `work` does, or to {@link LATE} when that takes over `limitMs`; the work then goes on unheard. @throws as `work` does */
export async function inTime<T>(
  clock: Pick<Clock, 'sleep' | 'turn'>,
  limitMs: number,
  work: Promise<T>,
): Promise<T | typeof LATE> {
  const timer = new AbortController();
  // A calling thread that was busy itself finds the timer and the answer at once: after a turn the answer has come first.
  const late = clock
    .sleep(limitMs, timer.signal)
    .then(() => clock.turn())
    .then((): typeof LATE => LATE);
  try {
    return await Promise.race([work, late]);
  } finally {
    timer.abort(DONE);
  }
}
