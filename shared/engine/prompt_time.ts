/** Divides the milliseconds that prompts may take in one step among their rows, by the fitted step time. */
import { pairsOf, type StepTime } from '../protocol/instance_work.ts';

/** Rows that matrix products process together; prompts get at least this many rows of every step. */
export const ROW_UNIT = 4;

/** Milliseconds left for rows of prompts in one step. */
export class PromptTime {
  readonly #time: StepTime;
  #leftMs: number;
  #hasRows = false;

  constructor(time: StepTime, leftMs: number) {
    this.#time = time;
    this.#leftMs = leftMs;
  }

  /**
   * Returns how many rows of a prompt from position `start` on take no longer than what is left, in multiples of ROW_UNIT. The step's
   * first prompt gets at least ROW_UNIT, so that none starves. The deeper in a prompt, the more pairs each row has.
   */
  rowsFrom(start: number): number {
    const { rowMs, pairMs, sequenceMs } = this.#time;
    const leftMs = this.#leftMs - sequenceMs;
    // pairMs / 2 × n² + ownMs × n = leftMs, by the solution that divides by no small difference.
    const ownMs = rowMs + pairMs * (start + 0.5);
    const most = leftMs > 0 ? (2 * leftMs) / (ownMs + Math.sqrt(ownMs * ownMs + 2 * pairMs * leftMs)) : 0;
    const rows = Number.isFinite(most) ? Math.floor(most / ROW_UNIT) * ROW_UNIT : Infinity;
    return this.#hasRows ? rows : Math.max(ROW_UNIT, rows);
  }

  /** Records that rows [start, start + count) of a prompt are in the step. */
  took(start: number, count: number): void {
    const { rowMs, pairMs, sequenceMs } = this.#time;
    this.#leftMs -= sequenceMs + rowMs * count + pairMs * pairsOf(start, count);
    this.#hasRows = true;
  }
}
