/** Milliseconds of an engine by sequence: what each takes of a step, and what it is expected to take still, by the fitted step time. */
import { pairsOf, type StepTime } from '../protocol/instance_work.ts';
import type { Sequence } from './sequence.ts';
import { isTokenRow, type SequenceRows } from './step_fit.ts';

/** A row counts as a millisecond while nothing is known of the time of a step. */
export const NOMINAL_TIME: StepTime = { constantMs: 0, rowMs: 1, pairMs: 0, contextMs: 0, sequenceMs: 0 };

/** Step time as an engine has fitted it. */
export interface FittedTime {
  readonly isKnown: boolean;
  readonly time: StepTime;
}

/** Returns the coefficients to count by. */
export function countedTime({ isKnown, time }: FittedTime): StepTime {
  return isKnown ? time : NOMINAL_TIME;
}

/**
 * Returns the milliseconds that the rows of one sequence take of a step with `numSequences`: those of its rows, pairs and context, and an
 * equal part of what any step takes. Rows that were hit or fetched are not among them.
 */
export function rowsMs(time: StepTime, rows: SequenceRows, numSequences: number): number {
  const { constantMs, rowMs, pairMs, contextMs, sequenceMs } = time;
  const { start, count } = rows;
  const readMs = isTokenRow(rows) ? contextMs * (start + 1) : pairMs * pairsOf(start, count);
  return constantMs / numSequences + sequenceMs + rowMs * count + readMs;
}

/** Work that a sequence has left. */
export interface WorkLeft {
  /** Position of its next row, rows of its prompt that are left, and tokens that it is expected to generate. */
  readonly start: number;
  readonly promptRows: number;
  readonly tokens: number;
}

/** Sizes by which the time that any step takes is divided: rows of a step, and sequences that share one. */
export interface StepSizes {
  readonly chunkTokens: number;
  readonly numSequences: number;
}

/** Returns the milliseconds that work is expected to take of steps of that size. */
export function expectedMs(time: StepTime, { start, promptRows, tokens }: WorkLeft, sizes: StepSizes): number {
  const { constantMs, rowMs, pairMs, contextMs, sequenceMs } = time;
  const stepPart = sequenceMs + constantMs / Math.max(1, sizes.numSequences);
  const numSteps = Math.ceil(promptRows / sizes.chunkTokens);
  const promptMs = numSteps * stepPart + rowMs * promptRows + pairMs * pairsOf(start, promptRows);
  const context = start + promptRows + tokens / 2;
  return promptMs + tokens * (stepPart + rowMs + contextMs * context);
}

/** Returns the work that a sequence of an engine has left. */
export function workLeftOf({ request, tokens, rowsHere, cursor }: Sequence): WorkLeft {
  const { kind, expectedTokens = 0 } = request;
  const numOutput = tokens.length - request.request.promptLength;
  const numLeft = kind === 'decode' ? Math.max(0, expectedTokens - numOutput) : 0;
  const promptRows = Math.max(0, rowsHere);
  return { start: cursor.submitted, promptRows, tokens: numLeft };
}
