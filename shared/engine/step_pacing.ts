/**
 * Paces steps in which sequences wait for tokens: how many rows of prompts go with theirs.
 *
 *   a target for the time between tokens ─► rows that the fitted step time predicts to end within target − spread
 *   none, or --step-ms                   ─► StepBudget: measured durations of steps with and without rows of prompts
 */
import { stepMs as predictedMs, type StepWork } from '../protocol/instance_work.ts';
import { PromptTime } from './prompt_time.ts';
import { StepBudget, type StepTimes } from './step_budget.ts';
import { shortestOf, StepFit } from './step_fit.ts';

/** Durations that steps shall have, and the steps of the warm-up. */
export interface PacingOptions {
  /** Most milliseconds of a step while sequences wait for tokens; 0: none is stated. */
  readonly stepMs: number;
  /** Most milliseconds between two tokens of a sequence; 0: none is stated. Without effect where `stepMs` is stated. */
  readonly tbtTargetMs?: number | undefined;
  readonly firstSteps?: readonly StepTimes[] | undefined;
}

/** Largest part of the target that the spread of steps may take; with more, prompts would starve on a noisy device. */
const MOST_SPREAD = 0.5;

/** Paces the steps of one engine, and learns how long they take. */
export class StepPacing {
  readonly fit: StepFit;
  readonly #budget: StepBudget;
  /** Milliseconds between tokens that the fitted step time is to keep; 0 where StepBudget paces. */
  readonly #targetMs: number;

  constructor({ stepMs, tbtTargetMs = 0, firstSteps = [] }: PacingOptions) {
    this.fit = new StepFit(firstSteps);
    this.#targetMs = stepMs > 0 ? 0 : tbtTargetMs;
    // Until the fit predicts, the budget keeps the target by its own measurements.
    this.#budget = new StepBudget(stepMs > 0 ? stepMs : tbtTargetMs, shortestOf(firstSteps));
  }

  get #isFitted(): boolean {
    return this.#targetMs > 0 && this.fit.isKnown;
  }

  /** Milliseconds that a step in which sequences wait for tokens may be predicted to take; 0: not known. */
  get pacedStepMs(): number {
    if (!this.#isFitted) return this.#budget.targetMs;
    return this.#targetMs - Math.min(this.fit.spreadMs, MOST_SPREAD * this.#targetMs);
  }

  /** Returns how many rows of prompts may go with so many token rows, whatever their place in the prompt. */
  promptRows(tokenRows: number): number {
    return this.#isFitted ? Infinity : this.#budget.promptRows(tokenRows);
  }

  /** Returns the time of rows of prompts with `tokens`, the rows of sequences that wait; undefined: not limited by time. */
  promptTime(tokens: StepWork): PromptTime | undefined {
    if (!this.#isFitted || tokens.sequences === 0) return undefined;
    return new PromptTime(this.fit.time, this.pacedStepMs - predictedMs(this.fit.time, tokens));
  }

  /** Records a completed step. */
  took(times: StepTimes): void {
    const { tokenRows, promptRows, ms, pairs, contextTokens, sequences } = times;
    this.#budget.took(times);
    const rows = tokenRows + promptRows;
    this.fit.took({ rows, pairs, contextTokens, sequences }, ms, tokenRows > 0 && promptRows > 0);
  }
}
