/** Watchdog of the engine thread: a device that hangs blocks its thread, while the control thread still runs and can report it. */
import { every, type Clock } from '../base/clock.ts';

/** Milliseconds between checks of the heartbeat; a quarter of the step timeout when that is shorter. */
const WATCH_MS = 1_000;
const WATCH_LATE_MS = 500;

/** Clock, timeout and callback of the watchdog. */
export interface WatchOptions {
  readonly clock: Clock;
  readonly stepTimeoutMs: number;
  readonly onHang: (error: Error) => void;
  readonly signal: AbortSignal;
}

/**
 * Calls `onHang` once when an iteration of the engine's loop takes longer than `stepTimeoutMs`. `heartbeat` is [iterations of the
 * loop, 1 while one runs].
 */
export function watch(heartbeat: Int32Array, { clock, stepTimeoutMs, onHang, signal }: WatchOptions): void {
  const everyMs = Math.min(WATCH_MS, stepTimeoutMs / 4);
  let [numIterations, sinceMs, lookedMs] = [-1, clock.nowMs(), clock.nowMs()];
  every(clock, everyMs, signal, () => {
    const now = Atomics.load(heartbeat, 0);
    // A late check means that this process was suspended, and its device with it: the time starts again.
    if (clock.nowMs() - lookedMs > 2 * everyMs + WATCH_LATE_MS) numIterations = -1;
    lookedMs = clock.nowMs();
    if (now !== numIterations || Atomics.load(heartbeat, 1) === 0) [numIterations, sinceMs] = [now, clock.nowMs()];
    else if (clock.nowMs() - sinceMs > stepTimeoutMs) {
      sinceMs = Infinity;
      onHang(new Error(`the device hangs: a step has taken more than ${stepTimeoutMs} ms (--step-timeout-ms)`));
    }
  });
}
