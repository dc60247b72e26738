/** How busy the load generator itself is: a generator that is late measures itself. */
import type { Clock } from '../../../shared/base/clock.ts';
import { DONE } from '../../../shared/base/signal.ts';

/** Milliseconds between two looks at the event loop, and how much later than that a timer is in an idle process. */
const LOOK_MS = 10;
const TIMER_MS = 1.5;

/** Load of this process during a run. */
export interface ClientFigures {
  /** CPU time over elapsed time, in cores. */
  readonly cpuCores: number;
  /** Mean time that an answer waited here before it was read, in milliseconds. */
  readonly delayMs: number;
  /** The longest such time. */
  readonly maxDelayMs: number;
}

/** Watches the event loop and the CPU time of this process from its start until `stop`. */
export class ClientLoad {
  readonly #clock: Clock;
  readonly #cpuMs: () => number;
  readonly #stopped = new AbortController();
  readonly #startMs: number;
  readonly #startCpuMs: number;
  /** Sum of the squares of all delays: within a delay of L, what arrives waits L/2 in the mean, and L is the chance to arrive within it. */
  #squares = 0;
  #maxMs = 0;

  /** `cpuMs` returns the CPU time of this process in milliseconds. */
  constructor(clock: Clock, cpuMs: () => number) {
    [this.#clock, this.#cpuMs] = [clock, cpuMs];
    [this.#startMs, this.#startCpuMs] = [clock.nowMs(), cpuMs()];
    void this.#watch();
  }

  async #watch(): Promise<void> {
    const { signal } = this.#stopped;
    while (!signal.aborted) {
      const beforeMs = this.#clock.nowMs();
      await this.#clock.sleep(LOOK_MS, signal);
      const lateMs = this.#clock.nowMs() - beforeMs - LOOK_MS - TIMER_MS;
      if (lateMs <= 0) continue;
      this.#squares += lateMs ** 2;
      this.#maxMs = Math.max(this.#maxMs, lateMs);
    }
  }

  /** Ends the watch and returns its figures. */
  stop(): ClientFigures {
    this.#stopped.abort(DONE);
    const elapsedMs = Math.max(1, this.#clock.nowMs() - this.#startMs);
    return {
      cpuCores: (this.#cpuMs() - this.#startCpuMs) / elapsedMs,
      delayMs: this.#squares / 2 / elapsedMs,
      maxDelayMs: this.#maxMs,
    };
  }
}
