/**
 * Limits the prompt rows of a step while sequences wait for their next tokens.
 *
 *   a step with token rows only ─► its duration      a step with prompt rows too ─► the time that a prompt row adds
 *   prompt rows = (target − duration with token rows only) / time of a prompt row, a multiple of four, at least four
 *
 * At least four rows keep prompts from starving. Both times are running averages measured on this device. While prompts keep coming,
 * a step now and then goes without them, so that the duration of token steps stays known. Steps in which nobody waits for a token
 * are not limited.
 */
import type { StepWork } from '../protocol/instance_work.ts';
import { ROW_UNIT } from './prompt_time.ts';

/** Target without --step-ms, as a multiple of the duration of a step without prompt rows. */
const AUTO_FACTOR = 2.5;
/**
 * Weight of a new time in the running average, when it is above and below it. The time per prompt row errs upwards; the time of steps
 * without prompt rows errs downwards, because disturbances only lengthen them.
 */
const ROW = { up: 0.5, down: 0.2 };
const TOKENS = { up: 0.2, down: 0.7 };
/**
 * Steps with prompt rows between two steps without. The second value applies when the number of token rows has changed by a factor of
 * more than CHANGED since the last measurement, or fewer than FEW steps were measured.
 */
const MEASURE_EVERY = 32;
const MEASURE_CHANGED_EVERY = 4;
const CHANGED = 1.5;
const FEW = 4;

/** Rows and duration of one step. */
interface RowTimes {
  /** Rows of sequences that wait for their next token, and other rows. */
  readonly tokenRows: number;
  readonly promptRows: number;
  readonly ms: number;
}

/** Work and duration of one step. */
export interface StepTimes extends RowTimes, Omit<StepWork, 'rows'> {}

/** Limits the prompt rows of a step from measured step times, so that waiting tokens are not delayed beyond the target. */
export class StepBudget {
  readonly #stepMs: number;
  #tokensMs: number | undefined;
  /** Token rows of the last step without prompt rows, and the number of such steps since that count changed much. */
  #tokenRows = 0;
  #numMeasured = 0;
  #rowMs: number | undefined;
  /** Number of steps with prompt rows since the last step without. */
  #numMixed = 0;

  /**
   * `stepMs` is the target; 0: AUTO_FACTOR times the duration of steps without prompt rows. `first` holds step times that the warm-up
   * has measured.
   */
  constructor(stepMs: number, first: readonly RowTimes[] = []) {
    this.#stepMs = stepMs;
    for (const times of first) this.took(times);
  }

  /** Milliseconds that a step with token rows may take; 0 until a step without prompt rows was measured. */
  get targetMs(): number {
    return this.#stepMs > 0 ? this.#stepMs : AUTO_FACTOR * (this.#tokensMs ?? 0);
  }

  /**
   * Returns how many prompt rows a step with `tokenRows` token rows may have: Infinity without token rows, 0 when the step is to
   * measure token rows alone.
   */
  promptRows(tokenRows: number): number {
    if (tokenRows === 0) return Infinity;
    if (this.#tokensMs === undefined || this.#isStale(tokenRows)) return 0;
    // Until prompt rows are measured, a prompt row counts as much as a token row. That is an upper limit, because rows of one step
    // share the reading of the weights.
    const rowMs = Math.max(this.#rowMs ?? this.#tokensMs / tokenRows, 1e-6);
    const rows = Math.floor((this.targetMs - this.#tokensMs) / rowMs);
    return Math.max(ROW_UNIT, rows - (rows % ROW_UNIT));
  }

  #isStale(tokenRows: number): boolean {
    const ratio = tokenRows / this.#tokenRows;
    const hasChanged = ratio > CHANGED || ratio < 1 / CHANGED;
    return this.#numMixed >= (hasChanged || this.#numMeasured < FEW ? MEASURE_CHANGED_EVERY : MEASURE_EVERY);
  }

  /** Records the rows and duration of a completed step. */
  took({ tokenRows, promptRows, ms }: RowTimes): void {
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
