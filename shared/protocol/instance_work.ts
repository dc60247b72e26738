/**
 * The work of an instance as its heartbeats carry it: how long its steps take, what it has still to compute, and what room it has. The
 * conductor predicts from it when a further prompt would be computed and how fast its answer would come.
 */
import { z } from 'zod';

const atLeastZero = z.number().min(0);

const stepTimeSchema = z.object({
  /** Milliseconds of any step. */
  constantMs: atLeastZero,
  /** Milliseconds per row: a token of a prompt, or the last token of a sequence that generates. */
  rowMs: atLeastZero,
  /** Milliseconds per attended pair: a row of a prompt and a token that it attends to. */
  pairMs: atLeastZero,
  /** Milliseconds per token of KV that the rows of generating sequences read. */
  contextMs: atLeastZero,
  /** Milliseconds per sequence in the step. */
  sequenceMs: atLeastZero,
});

/** Coefficients of the time of a step on one instance, as the instance has fitted them to its steps; none is negative. */
export type StepTime = z.infer<typeof stepTimeSchema>;

/** Work of one step, or the sum of several. */
export interface StepWork {
  /** Rows: tokens of prompts, and one for each generating sequence. */
  readonly rows: number;
  /** Pairs of a prompt's row and a token that it attends to. */
  readonly pairs: number;
  /** Tokens of KV that the rows of generating sequences read. */
  readonly contextTokens: number;
  readonly sequences: number;
}

/** Returns the predicted milliseconds of one step. */
export function stepMs(
  { constantMs, rowMs, pairMs, contextMs, sequenceMs }: StepTime,
  { rows, pairs, contextTokens, sequences }: StepWork,
): number {
  return constantMs + rowMs * rows + pairMs * pairs + contextMs * contextTokens + sequenceMs * sequences;
}

/** Returns the pairs that rows [start, start + count) of a prompt attend to, themselves included. */
export function pairsOf(start: number, count: number): number {
  return count * start + (count * (count + 1)) / 2;
}

/** Upper bound of the entries of `ends` in a heartbeat (P1). */
export const MAX_ENDS = 8;

/** Schema of {@link InstanceWork}, for heartbeats. */
export const workSchema = z.object({
  step: stepTimeSchema,
  /** Most rows of a step, and most sequences that hold device blocks. */
  chunkTokens: z.int(),
  maxNumSeqs: z.int(),
  /**
   * Milliseconds that a step with rows of prompts takes at most while sequences wait for tokens; 0 while the instance knows no
   * duration of such steps.
   */
  pacedStepMs: atLeastZero,
  /** Prompts of which rows are still to be computed here, waiting ones included: the rows, their pairs, and the number of prompts. */
  prompts: z.object({ tokens: atLeastZero, pairs: atLeastZero, sequences: z.int() }),
  /** Sequences that generate tokens now, and tokens of KV that one step of theirs reads. */
  generating: z.object({ sequences: z.int(), contextTokens: atLeastZero }),
  /** Sequences that will generate here and do not yet: they wait, load blocks or have rows of their prompt to compute. */
  coming: z.object({ sequences: z.int(), contextTokens: atLeastZero }),
  /** Device blocks: all, those that a sequence may take now, and those that waiting sequences need to begin. */
  numBlocks: z.int(),
  freeBlocks: z.int(),
  waitingBlocks: z.int(),
  /** Bytes of a block's record, as it is sent to another instance. */
  blockBytes: z.int(),
  /** Expected milliseconds until the rows of `prompts` are computed. */
  promptsMs: atLeastZero,
  /**
   * When sequences that generate are expected to end, soonest first: milliseconds from now, and the number of sequences and device
   * blocks that have become free by then.
   */
  ends: z.array(z.object({ ms: atLeastZero, sequences: z.int(), blocks: z.int() })).max(MAX_ENDS),
});

/** Work of an instance at the time of a heartbeat. */
export type InstanceWork = z.infer<typeof workSchema>;
