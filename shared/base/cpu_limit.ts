/**
 * Limits for work that another thread does, in CPU time of that thread: whether work is too much must not depend on how busy the machine
 * is. Wall time is only a guard against a thread that gets no CPU time, or that waits for something.
 *
 *   the thread used `cpuMs`                                   spent: the work is too much, on any machine
 *   it used less than PROGRESS_MS within PATIENCE_MS          late: the machine is too busy, or the thread hangs
 *   its CPU time cannot be read, and `cpuMs` × BUSY_FACTOR    late
 *   have passed
 */
import type { Clock } from './clock.ts';
import { DONE } from './signal.ts';
import type { CpuTime } from './threads.ts';

/** Result of {@link inCpuTime} when the thread has used up its CPU time. */
export const SPENT = Symbol('spent');
/** Result of {@link inCpuTime} when the work has not ended, although the thread has not used up its CPU time. */
export const LATE = Symbol('late');

/** Milliseconds between two readings of a thread's CPU time. Work that ends before the first costs no reading. */
const CHECK_MS = 250;
/** Milliseconds within which a thread that works gets PROGRESS_MS of CPU time, also with a hundred busy threads. */
const PATIENCE_MS = 60_000;
const PROGRESS_MS = 50;
/** How much slower than alone a thread may be whose CPU time cannot be read. */
const BUSY_FACTOR = 3;

type LimitClock = Pick<Clock, 'nowMs' | 'sleep' | 'turn'>;

/**
 * Resolves as `work` does, to {@link SPENT} when `thread` takes over `cpuMs` milliseconds of CPU time for it, or to {@link LATE}; the work
 * then goes on unheard. The thread does nothing else meanwhile. @throws as `work` does
 */
export async function inCpuTime<T>(
  clock: LimitClock,
  thread: CpuTime,
  cpuMs: number,
  work: Promise<T>,
): Promise<T | typeof SPENT | typeof LATE> {
  const timer = new AbortController();
  try {
    return await Promise.race([work, limit(clock, thread, cpuMs, timer.signal)]);
  } finally {
    timer.abort(DONE);
  }
}

/** Returns the thread's CPU time; undefined where the system does not say it, or not at once: a thread that is stuck may not answer. */
function reading(clock: LimitClock, thread: CpuTime, signal: AbortSignal): Promise<number | undefined> {
  const late = clock.sleep(CHECK_MS, signal).then(() => undefined);
  return Promise.race([thread.cpuMs?.(), late]);
}

async function limit(
  clock: LimitClock,
  thread: CpuTime,
  cpuMs: number,
  signal: AbortSignal,
): Promise<typeof SPENT | typeof LATE> {
  let elapsedMs = 0;
  let first: number | undefined;
  let [markedMs, markedAtMs] = [0, 0];
  for (;;) {
    const beganMs = clock.nowMs();
    await clock.sleep(CHECK_MS, signal);
    // A calling thread that was busy itself finds the timer and the answer at once: after a turn the answer has come first.
    await clock.turn();
    if (signal.aborted) return LATE;
    const now = await reading(clock, thread, signal);
    // A process that stood still for long has not waited for its thread.
    elapsedMs += Math.min(clock.nowMs() - beganMs, 4 * CHECK_MS);
    if (now === undefined) {
      if (elapsedMs >= cpuMs * BUSY_FACTOR) return LATE;
      continue;
    }
    first ??= now;
    if (now - first >= cpuMs) return SPENT;
    if (now - markedMs >= PROGRESS_MS) [markedMs, markedAtMs] = [now, elapsedMs];
    else if (elapsedMs - markedAtMs >= PATIENCE_MS) return LATE;
  }
}
