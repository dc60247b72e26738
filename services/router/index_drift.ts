/**
 * What the prefix index promised beside what requests then found: tokens of prompts that somebody was said to hold, and those of them that
 * were not computed. An index that is right is off by what is evicted in between; one that drifts promises what nobody has.
 */

/** Requests that are looked back at. */
const WINDOW = 256;
/** Below so many there is nothing to say. */
const MIN_REQUESTS = 16;
/** Of what was promised, missing. */
const ALARM = 0.1;

export class IndexDrift {
  readonly #promised = new Float64Array(WINDOW);
  readonly #missing = new Float64Array(WINDOW);
  #numRequests = 0;
  #isAlarmed = false;
  readonly #onAlarm: (missing: number) => void;

  /** `onAlarm` hears when it begins, with the share of promised tokens that were missing. */
  constructor(onAlarm: (missing: number) => void) {
    this.#onAlarm = onAlarm;
  }

  /** Of the last requests that were promised something: the share that was missing. */
  get missing(): number {
    const sum = (values: Float64Array): number => values.reduce((all, value) => all + value, 0);
    return this.#numRequests === 0 ? 0 : sum(this.#missing) / sum(this.#promised);
  }

  get isAlarmed(): boolean {
    return this.#isAlarmed;
  }

  /** A request has its first token. Tokens. */
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
