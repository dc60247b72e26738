/**
 * Compares what the prefix index promised with what requests found: prompt tokens reported as held, and how many of them were not
 * cached. A correct index is off only by blocks evicted in between; a drifting index promises blocks that no instance holds.
 */

/** Number of recent requests that the comparison covers. */
const WINDOW = 256;
/** Number of requests before the alarm can be raised. */
const MIN_REQUESTS = 16;
/** Share of promised tokens that may be missing before the alarm is raised. */
const ALARM = 0.1;

/** Rolling comparison over the last WINDOW requests that were promised tokens; raises an alarm above a share of ALARM missing tokens. */
export class IndexDrift {
  readonly #promised = new Float64Array(WINDOW);
  readonly #missing = new Float64Array(WINDOW);
  #numRequests = 0;
  #isAlarmed = false;
  readonly #onAlarm: (missing: number) => void;

  /** `onAlarm` is called when the alarm is raised, with the share of promised tokens that were missing. */
  constructor(onAlarm: (missing: number) => void) {
    this.#onAlarm = onAlarm;
  }

  /** Returns the share of promised tokens that were missing, over the last WINDOW requests with a promise; 0 before the first. */
  get missing(): number {
    const sum = (values: Float64Array): number => values.reduce((all, value) => all + value, 0);
    return this.#numRequests === 0 ? 0 : sum(this.#missing) / sum(this.#promised);
  }

  get isAlarmed(): boolean {
    return this.#isAlarmed;
  }

  /** Records a request at its first token: prompt tokens that the index promised, and prompt tokens that were cached. */
  observe(promised: number, cached: number): void {
    if (promised <= 0) return;
    const at = this.#numRequests++ % WINDOW;
    this.#promised[at] = promised;
    this.#missing[at] = Math.max(0, promised - cached);
    const wasAlarmed = this.#isAlarmed;
    this.#isAlarmed = this.#numRequests >= MIN_REQUESTS && this.missing > ALARM;
    if (this.#isAlarmed && !wasAlarmed) this.#onAlarm(this.missing);
  }
}
