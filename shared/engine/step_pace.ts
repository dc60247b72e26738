/**
 * How many rows of prompts a step takes while others wait for their next tokens.
 *
 *   a step with tokens only ─► what it takes      one with rows of prompts too ─► what a row adds
 *   rows = (target − tokens' time) / time of a row, in fours, at least four: who waits for a prompt is not starved
 *
 * Both times are running averages of what this device showed. Steps in which nobody waits for a token are not paced: they take what is
 * fastest.
 */

/** Without a target of its own a step may take this many times what it takes without prompts. */
const AUTO_FACTOR = 2;
/** Of a new time in the average: at once when it is longer than thought, slowly when shorter. */
const UP = 0.5;
const DOWN = 0.1;
/** Rows that products take at a time. */
const ROW_UNIT = 4;

export interface StepTimes {
  /** Rows of sequences that wait for their next token, and other rows. */
  readonly tokenRows: number;
  readonly promptRows: number;
  readonly ms: number;
}

export class StepPace {
  readonly #stepMs: number;
  #tokensMs: number | undefined;
  #rowMs: number | undefined;

  /** `stepMs`: the target; 0: twice what steps without prompts take. */
  constructor(stepMs: number) {
    this.#stepMs = stepMs;
  }

  /** Rows of prompts for a step of so many token rows. */
  promptRows(tokenRows: number): number {
    // A row alone reads every weight, one of many does not: until it is known what it adds, that is the most.
    const rowMs = this.#rowMs ?? (this.#tokensMs ?? NaN) / tokenRows;
    if (tokenRows === 0 || Number.isNaN(rowMs)) return Infinity;
    const tokensMs = this.#tokensMs ?? rowMs * tokenRows;
    const targetMs = this.#stepMs > 0 ? this.#stepMs : AUTO_FACTOR * tokensMs;
    const rows = Math.floor((targetMs - tokensMs) / Math.max(rowMs, 1e-6));
    return Math.max(ROW_UNIT, rows - (rows % ROW_UNIT));
  }

  /** What a step took. */
  took({ tokenRows, promptRows, ms }: StepTimes): void {
    if (promptRows === 0) this.#tokensMs = average(this.#tokensMs, ms, DOWN);
    else this.#rowMs = average(this.#rowMs, this.#addedMs(tokenRows, ms) / promptRows, UP);
  }

  #addedMs(tokenRows: number, ms: number): number {
    return tokenRows > 0 && this.#tokensMs !== undefined ? Math.max(0, ms - this.#tokensMs) : ms;
  }
}

function average(before: number | undefined, now: number, up: number): number {
  if (before === undefined) return now;
  return before + (now > before ? up : DOWN) * (now - before);
}
