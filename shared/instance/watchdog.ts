/** A device that hangs keeps its thread; control still runs, and says so. */
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

/** `pulse`: turns of the engine's loop, and whether one runs. */
export function watch(heartbeat: Int32Array, { clock, stepTimeoutMs, onHang, signal }: WatchOptions): void {
  const everyMs = Math.min(WATCH_MS, stepTimeoutMs / 4);
  let [turn, sinceMs, lookedMs] = [-1, clock.nowMs(), clock.nowMs()];
  every(clock, everyMs, signal, () => {
    const now = Atomics.load(heartbeat, 0);
    // A look that comes late says that this process was stopped, and its device with it.
    if (clock.nowMs() - lookedMs > 2 * everyMs + WATCH_LATE_MS) turn = -1;
    lookedMs = clock.nowMs();
    if (now !== turn || Atomics.load(heartbeat, 1) === 0) [turn, sinceMs] = [now, clock.nowMs()];
    else if (clock.nowMs() - sinceMs > stepTimeoutMs) {
      sinceMs = Infinity;
      onHang(new Error(`the device hangs: a step has taken more than ${stepTimeoutMs} ms (--step-timeout-ms)`));
    }
  });
}
