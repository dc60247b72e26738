/**
 * Fits the coefficients of the time of a step to the steps of this engine, as they complete.
 *
 *   step: rows, pairs, tokens of KV, sequences; milliseconds ─► decayed sums ─► non-negative solution ─► coefficients
 *                                                                    ▲                                      │
 *                                              prior: the start-up measurement, later what was fitted ◄─────┘
 *
 * A step counts by its relative error, because short steps are the most frequent and must be predicted as well as long ones; one that
 * took far longer than predicted, such as during a pause of the process, counts with less weight. A coefficient that recent steps do not
 * exercise (pairs, while every sequence decodes) keeps its prior value. The prior follows the fit, so that what is known of prompts
 * survives a long time without prompts.
 */
import type { StepTime, StepWork } from '../protocol/instance_work.ts';
import { pairsOf, stepMs } from '../protocol/instance_work.ts';
import { DecayedSums } from '../base/decayed_sums.ts';
import { solveNonNegative } from '../base/non_negative_solve.ts';
import { Spread } from './spread.ts';
import type { StepTimes } from './step_budget.ts';

/**
 * Share of its weight that an observation keeps with each later step: all but 1/e is lost after 512 steps, or after 64 while steps keep
 * deviating from their predictions to one side, because the device has changed.
 */
const KEEP = Math.exp(-1 / 512);
const KEEP_CHANGED = Math.exp(-1 / 64);
/**
 * Mean relative deviation (over about 1 / NEW steps) above which the device counts as changed. One step contributes at most MOST_EXCESS.
 */
const CHANGED = 0.2;
const NEW = 1 / 32;
/** Steps between two solves; in the beginning a quarter of the steps seen. */
const SOLVE_EVERY = 32;
/** Weight of each new solution when the prior follows it. */
const PRIOR_FOLLOWS = 0.05;
/** Relative excess above which the influence of a step on the fit grows no further. */
const MOST_EXCESS = 0.5;
/**
 * Weight of the prior, in steps, where each column has its value of TYPICAL: constant, rows, pairs, tokens of KV, sequences. Where two
 * columns always change together, the one with the smaller typical value takes the difference from the prior.
 */
const PRIOR_STEPS = 0.5;
const TYPICAL = [1, 64, 65_536, 16_384, 32];
/** Steps after which coefficients are known without a start-up measurement. */
const FEW = 16;

/** Fit of the step time of one engine; starts from the steps of the warm-up, if there are any. */
export class StepFit {
  readonly #sums = new DecayedSums(TYPICAL.length);
  readonly #spread = new Spread();
  /** Columns of the step that is being added, kept to spare an array for each step. */
  readonly #columns = new Float64Array(TYPICAL.length);
  readonly #prior: Float64Array;
  #time: StepTime;
  /** Mean of the latest steps' relative deviations from their predictions. */
  #deviation = 0;
  #numSteps = 0;
  #numNew = 0;

  constructor(first: readonly StepTimes[] = []) {
    const prior = priorOf(first);
    if (prior) this.#numSteps = FEW;
    this.#time = prior ?? { constantMs: 0, rowMs: 0, pairMs: 0, contextMs: 0, sequenceMs: 0 };
    this.#prior = columnsOf(this.#time);
  }

  /** Whether the coefficients predict anything: there was a start-up measurement, or a few steps have completed. */
  get isKnown(): boolean {
    return this.#numSteps >= FEW;
  }

  /** Whether there was a start-up measurement, or at least one step. */
  get hasSteps(): boolean {
    return this.#numSteps > 0;
  }

  get time(): StepTime {
    return this.#time;
  }

  /** Milliseconds by which steps with rows of prompts, in which sequences wait for tokens, exceed their prediction in one of 2,000 cases. */
  get spreadMs(): number {
    return this.#spread.ms;
  }

  /**
   * Records a completed step. `isMixed`: it had rows of prompts, and sequences waited for its tokens.
   */
  took(work: StepWork, ms: number, isMixed: boolean): void {
    const predictedMs = this.isKnown ? stepMs(this.#time, work) : ms;
    const scaleMs = Math.max(predictedMs, 0.1 * ms, 1e-3);
    const excess = (ms - predictedMs) / scaleMs;
    const share = excess > MOST_EXCESS ? MOST_EXCESS / excess : 1;
    const columns = this.#columns;
    columns[0] = 1;
    columns[1] = work.rows;
    columns[2] = work.pairs;
    columns[3] = work.contextTokens;
    columns[4] = work.sequences;
    this.#deviation += NEW * (Math.min(excess, MOST_EXCESS) - this.#deviation);
    const keep = Math.abs(this.#deviation) > CHANGED ? KEEP_CHANGED : KEEP;
    this.#sums.add(columns, ms, share / (scaleMs * scaleMs), keep);
    if (isMixed && this.isKnown) this.#spread.took(ms - predictedMs);
    this.#numSteps++;
    this.#numNew++;
    if (this.#numNew >= Math.min(SOLVE_EVERY, this.#numSteps / 4)) this.#solve();
  }

  #solve(): void {
    this.#numNew = 0;
    const prior = this.#prior;
    const weight = PRIOR_STEPS * this.#sums.meanWeight;
    const ridge = Float64Array.from(TYPICAL, (typical) => weight * typical * typical);
    const { a, b } = this.#sums.equations(prior, ridge);
    const solution = solveNonNegative(a, b);
    for (let i = 0; i < prior.length; i++) prior[i] = prior[i]! + PRIOR_FOLLOWS * (solution[i]! - prior[i]!);
    const [constantMs = 0, rowMs = 0, pairMs = 0, contextMs = 0, sequenceMs = 0] = solution;
    this.#time = { constantMs, rowMs, pairMs, contextMs, sequenceMs };
  }
}

function columnsOf({ constantMs, rowMs, pairMs, contextMs, sequenceMs }: StepTime): Float64Array {
  return Float64Array.of(constantMs, rowMs, pairMs, contextMs, sequenceMs);
}

/**
 * Returns the coefficients that the steps of the warm-up show: a single token and a prompt, and both again after a longer context.
 * undefined without a token or a prompt. Where no prompt was measured after a longer context, a pair counts as much as a token of KV
 * that a decode step reads; that is an upper limit, because rows of a prompt share the reading. A constant cannot be told
 * from a cost per sequence here, so `sequenceMs` is 0.
 */
export function priorOf(first: readonly StepTimes[]): StepTime | undefined {
  const [token, longToken] = extremes(tokensOf(first), ({ contextTokens }) => contextTokens);
  const [prompt, longPrompt] = extremes(promptsOf(first), ({ pairs }) => pairs);
  if (!token || !prompt || !longToken || !longPrompt) return undefined;
  const contextMs = slope(longToken.ms - token.ms, longToken.contextTokens - token.contextTokens) ?? 0;
  const pairMs = slope(longPrompt.ms - prompt.ms, longPrompt.pairs - prompt.pairs) ?? contextMs;
  const ownMs = prompt.ms - pairMs * prompt.pairs - (token.ms - contextMs * token.contextTokens);
  const rowMs = slope(ownMs, prompt.promptRows - token.tokenRows) ?? 0;
  const constantMs = Math.max(0, token.ms - rowMs * token.tokenRows - contextMs * token.contextTokens);
  return { constantMs, rowMs, pairMs, contextMs, sequenceMs: 0 };
}

/** Returns the single token and the prompt of the warm-up with the shortest context; fewer where one is missing. */
export function shortestOf(first: readonly StepTimes[]): readonly StepTimes[] {
  const [token] = extremes(tokensOf(first), ({ contextTokens }) => contextTokens);
  const [prompt] = extremes(promptsOf(first), ({ pairs }) => pairs);
  return [token, prompt].filter((times) => times !== undefined);
}

function tokensOf(first: readonly StepTimes[]): StepTimes[] {
  return first.filter(({ promptRows }) => promptRows === 0);
}

function promptsOf(first: readonly StepTimes[]): StepTimes[] {
  return first.filter(({ tokenRows }) => tokenRows === 0);
}

/** Returns the items with the least and the greatest value; neither when there are none. */
function extremes<T>(items: readonly T[], valueOf: (item: T) => number): readonly [T | undefined, T | undefined] {
  const sorted = [...items].sort((a, b) => valueOf(a) - valueOf(b));
  return [sorted[0], sorted.at(-1)];
}

function slope(ms: number, by: number): number | undefined {
  return by > 0 ? Math.max(0, ms / by) : undefined;
}

/** Rows of one sequence in a step. */
export interface SequenceRows {
  readonly start: number;
  readonly count: number;
  readonly sampled: { readonly length: number };
}

/** Returns whether these are the row of a sequence that waits for its next token, and no others. */
export function isTokenRow({ count, sampled }: SequenceRows): boolean {
  return count === 1 && sampled.length > 0;
}

/** Returns the work of a step, from the rows of its sequences. */
export function workOf(all: readonly SequenceRows[]): StepWork {
  let rows = 0;
  let pairs = 0;
  let contextTokens = 0;
  for (const sequence of all) {
    const { start, count } = sequence;
    rows += count;
    if (isTokenRow(sequence)) contextTokens += start + 1;
    else pairs += pairsOf(start, count);
  }
  return { rows, pairs, contextTokens, sequences: all.length };
}
