import type { Clock } from '../../shared/base/clock.ts';
import { SimProcess, Simulation } from './simulation.ts';

/** Time that moves only when nothing else can, for tests of one process: an hour costs what its events cost. */
export class SimulatedClock implements Clock {
  readonly #simulation = new Simulation();
  readonly #clock = this.#simulation.clockOf(new SimProcess('test'));

  nowMs(): number {
    return this.#clock.nowMs();
  }

  wallMs(): number {
    return this.#clock.wallMs();
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return this.#clock.sleep(ms, signal);
  }

  turn(): Promise<void> {
    return this.#clock.turn();
  }

  /** Wakes sleepers in time order until none is due by `untilMs`. */
  run(untilMs: number): Promise<void> {
    return this.#simulation.run(
      untilMs,
      () => false,
      () => undefined,
    );
  }
}
