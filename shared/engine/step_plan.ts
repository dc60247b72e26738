/**
 * Plans how many rows each sequence computes in the next step: a pure function of sequences, budget and free blocks. A prefill chunk
 * and a decode step differ only in their counts.
 *
 *   1. sequences that need one row, in order of arrival
 *   2. prompts, in order of arrival, within the rows that prompts may take with those
 *
 * A sequence without enough free blocks is left out and reported as short; the scheduler decides whose blocks are released for it.
 */
import type { StepWork } from '../protocol/instance_work.ts';
import type { PromptTime } from './prompt_time.ts';

/** Fields of a running sequence that the plan reads. */
export interface PlannableSequence {
  /** Rows until the sequence's target; `nextStop` is the position of the next block that is present already, or the target. */
  readonly remaining: number;
  readonly nextStop: number;
  readonly cursor: { readonly submitted: number };
  readonly blocks: { readonly length: number };
  /** Whether logits of each of the sequence's rows are requested, so that each counts as a sample. */
  readonly isReadingPrompt: boolean;
  /** A token is sampled from the row before `end`. */
  samplesAt(end: number): boolean;
}

/** Where a sequence's next token is sampled; `masked` means on the device, with a mask; `waits` means in a later step. */
export type SampledBy = 'device' | 'masked' | 'host' | 'waits';

/** A sequence that may compute rows in the next step. */
export interface Candidate<S extends PlannableSequence> {
  readonly sequence: S;
  readonly sampledBy: SampledBy;
}

/** Room that is left in a step. */
export interface StepRoom {
  readonly rows: number;
  /** Samples that are left for prompt tokens, besides the one of each sequence. */
  readonly spareSamples: number;
  readonly hostSamples: number;
  /** Samples on the device that may have a mask. */
  readonly masks: number;
  readonly freeBlocks: number;
  /** Time that is left for rows of prompts; undefined: as much as they take. */
  readonly promptTime?: PromptTime | undefined;
}

/** Number of rows that one sequence computes in a step. */
export interface PlannedRows<S> {
  readonly sequence: S;
  readonly count: number;
  /** Blocks that the sequence takes for its rows. */
  readonly newBlocks: number;
}

/** Result of planStep. */
export interface StepPlan<S> {
  readonly work: readonly PlannedRows<S>[];
  /** The first sequence for which there are no blocks. */
  readonly short: S | undefined;
  /** The budget that is left. */
  readonly left: StepRoom;
}

/** Limits of the rows of prompts with the rows of sequences that need one row. */
export interface PromptLimits {
  /** Returns how many rows of prompts may go with so many of those. */
  readonly promptRows: (tokenRows: number) => number;
  /** Returns the time that rows of prompts may take with that work; undefined: as much as they take. */
  readonly promptTime?: ((tokens: StepWork) => PromptTime | undefined) | undefined;
}

/** Plans the next step; rows of prompts keep to `limits`, and to the budget's prompt time where it has one. */
export function planStep<S extends PlannableSequence>(
  candidates: readonly Candidate<S>[],
  budget: StepRoom,
  blockSize: number,
  { promptRows, promptTime }: PromptLimits,
): StepPlan<S> {
  const work: PlannedRows<S>[] = [];
  // Made once, not for every token of every step.
  const left = { ...budget };
  let short: S | undefined;
  const plan = (candidate: Candidate<S>): void => {
    const count = rowsOf(candidate, left);
    if (count <= 0) return;
    const { sequence, sampledBy } = candidate;
    const end = sequence.cursor.submitted + count;
    const newBlocks = Math.max(0, Math.ceil(end / blockSize) - sequence.blocks.length);
    if (newBlocks > left.freeBlocks) {
      short ??= sequence;
      return;
    }
    work.push({ sequence, count, newBlocks });
    if (sequence.remaining > 1) left.promptTime?.took(sequence.cursor.submitted, count);
    const isSampled = sequence.samplesAt(end);
    left.rows -= count;
    left.spareSamples -= sequence.isReadingPrompt ? count - 1 : 0;
    left.hostSamples -= isSampled && sampledBy === 'host' ? 1 : 0;
    left.masks -= isSampled && sampledBy === 'masked' ? 1 : 0;
    left.freeBlocks -= newBlocks;
  };
  const prompts: Candidate<S>[] = [];
  // Sequences that wait for a token, those included that get none in this step because their mask is still to come.
  const tokens = { rows: 0, pairs: 0, contextTokens: 0, sequences: 0 };
  candidates.forEach((candidate) => {
    const { remaining, cursor } = candidate.sequence;
    if (remaining === 1) {
      tokens.rows++;
      tokens.sequences++;
      tokens.contextTokens += cursor.submitted + 1;
      plan(candidate);
    } else if (remaining > 1) prompts.push(candidate);
  });
  left.rows = Math.min(left.rows, promptRows(tokens.rows));
  if (promptTime) left.promptTime ??= promptTime(tokens);
  prompts.forEach(plan);
  return { work, short, left };
}

/** Rows of one sequence within the budget. */
function rowsOf<S extends PlannableSequence>(
  { sequence, sampledBy }: Candidate<S>,
  { rows, spareSamples, hostSamples, masks, promptTime }: StepRoom,
): number {
  const { submitted } = sequence.cursor;
  const inTime = sequence.remaining > 1 && promptTime ? promptTime.rowsFrom(submitted) : Infinity;
  const count = Math.min(rows, inTime, sequence.remaining, sequence.nextStop - submitted);
  const allowed = sequence.isReadingPrompt ? Math.min(count, 1 + spareSamples) : count;
  const maySample =
    sampledBy === 'device' || (sampledBy === 'host' && hostSamples > 0) || (sampledBy === 'masked' && masks > 0);
  // When nobody can sample for the sequence now, its rows are computed up to the one to sample from.
  return allowed > 0 && !maySample && sequence.samplesAt(submitted + allowed) ? allowed - 1 : allowed;
}
