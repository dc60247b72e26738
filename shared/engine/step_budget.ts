/**
 * How many rows of prompts a step takes while others wait for their next tokens.
 *
 *   a step with tokens only ─► what it takes      one with rows of prompts too ─► what a row adds
 *   rows = (target − tokens' time) / time of a row, in fours, at least four: who waits for a prompt is not starved
 *
 * Both times are running averages of what this device showed. While prompts never end a step now and then goes without them, so that the
 * tokens' time stays known. Steps in which nobody waits for a token are not paced: they take what is fastest.
 */

/** Without a target of its own a step may take this many times what it takes without prompts. */
const AUTO_FACTOR = 2.5;
/**
 * Weight of a new time in the running average, when it is above and below it. The time per prompt row errs upwards; the time of steps
 * without prompt rows errs downwards, because disturbances only lengthen them.
 */
const ROW = { up: 0.5, down: 0.2 };
const TOKENS = { up: 0.2, down: 0.7 };
/** Rows that products take at a time: who waits for a prompt has at least so many in a step. */
export const ROW_UNIT = 4;
/** Steps with prompts between two without; fewer when other numbers of sequences wait than when that was measured, or it was but a few times. */
const MEASURE_EVERY = 32;
const MEASURE_CHANGED_EVERY = 4;
const CHANGED = 1.5;
const FEW = 4;

/** Rows and duration of one step. */
export interface StepTimes {
  /** Rows of sequences that wait for their next token, and other rows. */
  readonly tokenRows: number;
  readonly promptRows: number;
  readonly ms: number;
}

/** Limits the prompt rows of a step from measured step times, so that waiting tokens are not delayed beyond the target. */
export class StepBudget {
  readonly #stepMs: number;
  #tokensMs: number | undefined;
  /** Token rows of the last step without prompt rows, and the number of such steps since that count changed much. */
  #tokenRows = 0;
  #numMeasured = 0;
  #rowMs: number | undefined;
  /** Steps with prompts since then. */
  #numMixed = 0;

  /** `stepMs`: the target; 0: two and a half times what steps without prompts take. `first`: what steps took before anybody waited for one. */
  constructor(stepMs: number, first: readonly StepTimes[] = []) {
    this.#stepMs = stepMs;
    for (const times of first) this.took(times);
  }

  /** Rows of prompts for a step of so many token rows. */
  promptRows(tokenRows: number): number {
    if (tokenRows === 0) return Infinity;
    if (this.#tokensMs === undefined || this.#isStale(tokenRows)) return 0;
    const targetMs = this.#stepMs > 0 ? this.#stepMs : AUTO_FACTOR * this.#tokensMs;
    // A row alone reads every weight, one of many does not: until it is known what it adds, that is the most.
    const rowMs = Math.max(this.#rowMs ?? this.#tokensMs / tokenRows, 1e-6);
    const rows = Math.floor((targetMs - this.#tokensMs) / rowMs);
    return Math.max(ROW_UNIT, rows - (rows % ROW_UNIT));
  }

  #isStale(tokenRows: number): boolean {
    const ratio = tokenRows / this.#tokenRows;
    const hasChanged = ratio > CHANGED || ratio < 1 / CHANGED;
    return this.#numMixed >= (hasChanged || this.#numMeasured < FEW ? MEASURE_CHANGED_EVERY : MEASURE_EVERY);
  }

  /** Records the rows and duration of a completed step. */
  took({ tokenRows, promptRows, ms }: StepTimes): void {
    if (promptRows === 0) {
      // With a very different number of token rows, the old average is replaced.
      const isOther = tokenRows / this.#tokenRows > CHANGED || this.#tokenRows / tokenRows > CHANGED;
      this.#tokensMs = isOther ? ms : average(this.#tokensMs, ms, TOKENS);
      this.#numMeasured = isOther ? 1 : this.#numMeasured + 1;
      this.#tokenRows = tokenRows;
      this.#numMixed = 0;
      return;
    }
    if (tokenRows > 0) this.#numMixed++;
    const addedMs = tokenRows > 0 ? Math.max(0, ms - (this.#tokensMs ?? 0)) : ms;
    this.#rowMs = average(this.#rowMs, addedMs / promptRows, ROW);
  }
}

function average(before: number | undefined, now: number, share: typeof ROW): number {
  if (before === undefined) return now;
  return before + (now > before ? share.up : share.down) * (now - before);
}
