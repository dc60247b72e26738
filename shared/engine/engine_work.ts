/**
 * Work that an engine has left, as its heartbeats carry it: a pure function of its sequences and of its step time.
 *
 *   waiting, loading ──► rows after cached and fetched blocks ──┐
 *   running, more than one row left ──► those rows ─────────────┴─► prompts
 *   running, one row left (its next token) ──► generating ──► ends
 */
import { MAX_ENDS, pairsOf, stepMs, type InstanceWork, type StepTime } from '../protocol/instance_work.ts';
import { ROW_UNIT } from './prompt_time.ts';
import type { Sequence } from './sequence.ts';

/** Fields of a sequence that its work is counted from. */
export type WorkSequence = Pick<
  Sequence,
  'state' | 'request' | 'cursor' | 'chain' | 'target' | 'length' | 'hittableBlocks' | 'awaitedRows'
>;

/** Sizes of an engine, and its state besides the sequences. */
export interface WorkOptions extends Pick<
  InstanceWork,
  'step' | 'chunkTokens' | 'maxNumSeqs' | 'pacedStepMs' | 'numBlocks' | 'freeBlocks' | 'blockBytes'
> {
  readonly blockSize: number;
  /** Tokens that an answer is expected to have whose router does not say. */
  readonly expectedTokens: number;
  /** Returns how many leading blocks of a waiting sequence the device has. */
  readonly cachedBlocks: (sequence: WorkSequence) => number;
}

/** Part of the tokens so far that an answer longer than expected is expected to go on for: the longer it is, the longer it may get. */
const LONGER = 0.5;
/** Weight of a finished answer in the mean length of answers, and that mean before the first. */
const NEW_LENGTH = 1 / 16;
const FIRST_LENGTH = 256;

/** Running mean of the number of tokens of finished answers. */
export class AnswerLength {
  #mean: number | undefined;

  get mean(): number {
    return this.#mean ?? FIRST_LENGTH;
  }

  finished(numTokens: number): void {
    this.#mean = this.#mean === undefined ? numTokens : this.#mean + NEW_LENGTH * (numTokens - this.#mean);
  }
}

interface Totals {
  readonly prompts: { tokens: number; pairs: number; sequences: number };
  readonly generating: { sequences: number; contextTokens: number };
  readonly coming: { sequences: number; contextTokens: number };
  waitingBlocks: number;
  readonly ends: { readonly numTokens: number; readonly blocks: number }[];
}

/** Returns the work that is left of `sequences`. */
export function workLeft(sequences: Iterable<WorkSequence>, options: WorkOptions): InstanceWork {
  const totals: Totals = {
    prompts: { tokens: 0, pairs: 0, sequences: 0 },
    generating: { sequences: 0, contextTokens: 0 },
    coming: { sequences: 0, contextTokens: 0 },
    waitingBlocks: 0,
    ends: [],
  };
  for (const sequence of sequences) count(sequence, totals, options);
  const { step, chunkTokens, maxNumSeqs, pacedStepMs, numBlocks, freeBlocks, blockBytes } = options;
  const { prompts, generating, coming, waitingBlocks } = totals;
  const promptsMs = promptsMsOf(totals, options);
  return {
    step,
    chunkTokens,
    maxNumSeqs,
    pacedStepMs,
    numBlocks,
    freeBlocks,
    blockBytes,
    prompts,
    generating,
    coming,
    waitingBlocks,
    promptsMs,
    ends: endsOf(totals, promptsMs, options),
  };
}

function count(sequence: WorkSequence, totals: Totals, options: WorkOptions): void {
  const { state, target, length } = sequence;
  const { kind, request, group, expectedTokens = 0 } = sequence.request;
  const { prompts, generating, coming } = totals;
  const start = startOf(sequence, options);
  // Samples of a prompt start from the blocks of the first one.
  const isFollower = state.kind === 'waiting' && group && group.index > 0;
  const numAfter = Math.max(0, target - start);
  const numRows = isFollower ? 0 : Math.max(0, numAfter - sequence.awaitedRows);
  if (state.kind === 'waiting') totals.waitingBlocks += Math.ceil(target / options.blockSize);
  if (kind === 'decode' && state.kind === 'running' && numRows <= 1) {
    generating.sequences++;
    generating.contextTokens += length;
    const most = request.maxLength - length;
    const numOutput = length - request.promptLength;
    const expected = expectedTokens > 0 ? expectedTokens : options.expectedTokens;
    const numLeft = expected > numOutput ? expected - numOutput : LONGER * numOutput;
    const blocks = state.blocks.length - state.firstHeld;
    totals.ends.push({ numTokens: Math.max(1, Math.min(most, numLeft)), blocks });
    return;
  }
  if (numRows > 0) {
    prompts.tokens += numRows;
    // Rows of a pipeline are spread evenly over what is left of the prompt.
    prompts.pairs += pairsOf(start, numAfter) * (numRows / numAfter);
    prompts.sequences++;
  }
  if (kind === 'decode') {
    coming.sequences++;
    coming.contextTokens += length;
  }
}

/** Returns the position of the first row of a sequence that is to be computed here. */
function startOf(sequence: WorkSequence, { blockSize, cachedBlocks }: WorkOptions): number {
  const { state, cursor, request, hittableBlocks } = sequence;
  if (state.kind === 'running' || state.kind === 'ended') return cursor.submitted;
  const cached = state.kind === 'waiting' ? cachedBlocks(sequence) : Math.floor(cursor.submitted / blockSize);
  const fetched = request.isFetching && !request.awaited ? (request.fetchEnd ?? hittableBlocks) : 0;
  return Math.min(hittableBlocks, Math.max(cached, fetched)) * blockSize;
}

/** Work of one step in which every generating sequence has its row, and no prompt has any. */
function tokensMsOf(step: StepTime, { generating: { sequences, contextTokens } }: Totals): number {
  return stepMs(step, { rows: sequences, pairs: 0, contextTokens, sequences });
}

/** Returns the milliseconds until the rows of prompts are computed, with the sequences that generate now. */
function promptsMsOf(totals: Totals, { step, chunkTokens, pacedStepMs }: WorkOptions): number {
  const { prompts, generating } = totals;
  if (prompts.tokens === 0) return 0;
  const rowsMs = step.rowMs * prompts.tokens + step.pairMs * prompts.pairs + step.sequenceMs * prompts.sequences;
  const tokensMs = tokensMsOf(step, totals);
  let numSteps = prompts.tokens / Math.max(ROW_UNIT, chunkTokens - generating.sequences);
  if (generating.sequences > 0 && pacedStepMs > 0 && rowsMs > 0) {
    const leastMs = (ROW_UNIT * rowsMs) / prompts.tokens;
    numSteps = Math.max(numSteps, rowsMs / Math.max(leastMs, pacedStepMs - tokensMs));
  }
  return Math.ceil(numSteps) * tokensMs + rowsMs;
}

/** Returns when generating sequences end. Until the prompts are computed, a step takes as long as prompts may lengthen it. */
function endsOf(totals: Totals, promptsMs: number, { step, pacedStepMs }: WorkOptions): InstanceWork['ends'] {
  const tokensMs = tokensMsOf(step, totals);
  const mixedMs = Math.max(tokensMs, pacedStepMs);
  const numMixed = mixedMs > 0 ? promptsMs / mixedMs : 0;
  const sorted = totals.ends.sort((a, b) => a.numTokens - b.numTokens);
  const numEnds = Math.min(MAX_ENDS, sorted.length);
  const ends: InstanceWork['ends'] = [];
  let [sequences, blocks] = [0, 0];
  for (let end = 1; end <= numEnds; end++) {
    const last = Math.ceil((end * sorted.length) / numEnds);
    for (; sequences < last; sequences++) blocks += sorted[sequences]?.blocks ?? 0;
    const numTokens = sorted[last - 1]?.numTokens ?? 0;
    const ms = Math.min(numTokens, numMixed) * mixedMs + Math.max(0, numTokens - numMixed) * tokensMs;
    ends.push({ ms, sequences, blocks });
  }
  return ends;
}
