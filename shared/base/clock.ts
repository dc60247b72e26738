/**
 * Source of time, passed in so that tests can control it: production uses `systemClock`, the simulator a clock that it advances
 * itself.
 */
export interface Clock {
  /** Milliseconds since an arbitrary origin; never goes back. */
  nowMs(): number;
  /** Milliseconds since 1970, for stamps that people read; never for differences. */
  wallMs(): number;
  /** Resolves after `ms`, or at once when `signal` aborts or `ms` is below 0: the time has passed already. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Yields to other work of this thread (one turn of the event loop); called between slices of a long computation. */
  turn(): Promise<void>;
}

/** Clock of the machine, for production. */
export const systemClock: Clock = {
  nowMs: () => performance.now(),
  wallMs: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal?.aborted) {
        resolve();
        return;
      }
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', done);
        resolve();
      };
      // Node warns of negative times.
      const timer = setTimeout(done, Math.max(0, ms));
      signal?.addEventListener('abort', done);
    }),
  turn: () =>
    new Promise((resolve) => {
      setImmediate(resolve);
    }),
};

/** Calls `tick` every `ms` until `signal` aborts. A tick that throws ends the process: it is a broken invariant. */
export function every(clock: Clock, ms: number, signal: AbortSignal, tick: () => void): void {
  const loop = async (): Promise<void> => {
    for (;;) {
      await clock.sleep(ms, signal);
      if (signal.aborted) return;
      tick();
    }
  };
  void loop();
}

/**
 * Calls `tick` at the multiples of `ms` on the clock until `signal` aborts: loops of one process that do so wake it together. `lateMs` is by
 * how much a tick comes too late, which is long after this process was stopped; ticks of that time are left out. A tick that throws ends
 * the process, as with {@link every}.
 */
export function inStep(clock: Clock, ms: number, signal: AbortSignal, tick: (lateMs: number) => void): void {
  const loop = async (): Promise<void> => {
    let dueMs = clock.nowMs();
    for (;;) {
      // A timer may fire a moment early: the multiple that it was for is not due again.
      dueMs = Math.max((Math.floor(clock.nowMs() / ms) + 1) * ms, (Math.floor(dueMs / ms) + 1) * ms);
      await clock.sleep(Math.ceil(dueMs - clock.nowMs()), signal);
      if (signal.aborted) return;
      tick(Math.max(0, clock.nowMs() - dueMs));
    }
  };
  void loop();
}
