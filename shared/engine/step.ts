/** One step of the device: the rows that each sequence computes in it, and what comes back for them. */
import {
  fromSlot,
  type SampleRequest,
  type SampleResult,
  type Segment,
  type StepExport,
} from '../../kernels/device.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import { promptRequest, type DrawBook } from './draw_book.ts';
import type { Sequence } from './sequence.ts';
import type { PlannedRows } from './step_plan.ts';

/** What a step does for a sequence. */
export interface StepRows {
  readonly sequence: Sequence;
  /** Tokens [start, start + count) are computed; with fetched blocks behind them it has those up to `after`. */
  readonly start: number;
  readonly count: number;
  readonly after: number;
  /** Positions of tokens of the prompt whose log-probabilities are asked for: [start, end). */
  readonly prompt: { readonly start: number; readonly end: number };
  /** Positions of the tokens that are drawn. */
  readonly drawn: readonly number[];
}

/** A block that a step fills. */
export interface FilledBlock {
  readonly block: number;
  readonly hash: AnchoredHash;
}

/** Blocks that leave while a step computes them. */
export interface EarlyExport {
  /** By block, the memory that it leaves into; undefined: that one leaves later. */
  readonly outs: readonly (Uint8Array | undefined)[];
  /** The frame's bytes are there, of all of them; in order. */
  readonly onFrame: (frame: number) => void;
  /** The step has settled. */
  readonly onEnd: () => void;
}

export interface BuiltStep {
  readonly rows: readonly StepRows[];
  readonly batch: readonly Segment[];
  readonly filled: readonly FilledBlock[];
}

/** Makes the batch, and moves the sequences' cursors on. `step`: its number. */
export function buildStep(
  work: readonly PlannedRows<Sequence>[],
  draws: DrawBook,
  blockSize: number,
  step: number,
): BuiltStep {
  const filled: FilledBlock[] = [];
  const batch: Segment[] = [];
  const rows = work.map(({ sequence, count }): StepRows => {
    const { submitted: start } = sequence.cursor;
    const end = start + count;
    const drawn = sequence.drawsAt(end) ? [sequence.length] : [];
    const prompt = sequence.promptRows(start, end);
    batch.push({
      ...{ tokens: tokensOf(sequence, start, end, draws), start, blockTable: sequence.blocks },
      ...samplesOf(sequence, { start, count, prompt, drawn }, draws),
    });
    for (let index = Math.floor(start / blockSize); index < Math.floor(end / blockSize); index++) {
      const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
      if (block !== undefined && hash) filled.push({ block, hash });
    }
    sequence.cursor.submit(count, drawn.length);
    sequence.lastStep = step;
    sequence.passFetched();
    return { sequence, start, count, after: sequence.cursor.submitted, prompt, drawn };
  });
  return { rows, batch, filled };
}

/** Ids of tokens [start, end); of those that the step before draws, where the device finds them. */
function tokensOf(sequence: Sequence, start: number, end: number, draws: DrawBook): ArrayLike<number> {
  const known = sequence.tokens.view().subarray(start, end);
  if (known.length === end - start) return known;
  return [...known, ...new Array<number>(end - start - known.length).fill(fromSlot(draws.slotOf(sequence)))];
}

function samplesOf(
  sequence: Sequence,
  { start, count, prompt, drawn }: Pick<StepRows, 'start' | 'count' | 'prompt' | 'drawn'>,
  draws: DrawBook,
): { readonly samples?: readonly SampleRequest[] } {
  const samples: SampleRequest[] = [];
  const tokens = sequence.tokens.view();
  const numTop = numPromptTop(sequence);
  for (let at = prompt.start; at < prompt.end; at++) samples.push(promptRequest(at - 1 - start, tokens[at]!, numTop));
  for (const position of drawn) samples.push(draws.request(sequence, position, count - 1));
  return samples.length > 0 ? { samples } : {};
}

/** Alternatives that are wanted with each token of the prompt. */
export function numPromptTop({ request: { request } }: Sequence): number {
  return Math.max(0, request.promptLogprobs - 1);
}

/** The results of one sequence's rows, out of those of a step; `at`: where they begin. */
export function resultsOf(
  results: readonly SampleResult[],
  at: number,
  { prompt, drawn }: StepRows,
): { readonly ofPrompt: readonly SampleResult[]; readonly ofDrawn: readonly SampleResult[]; readonly end: number } {
  const behindPrompt = at + prompt.end - prompt.start;
  const end = behindPrompt + drawn.length;
  return { ofPrompt: results.slice(at, behindPrompt), ofDrawn: results.slice(behindPrompt, end), end };
}

/** Those of the filled blocks that leave while the step runs. */
export function exportOf({ outs, onFrame }: EarlyExport, filled: readonly FilledBlock[]): StepExport {
  const leaving = filled.flatMap(({ block }, i) => {
    const out = outs[i];
    return out ? [{ block, out }] : [];
  });
  return { blocks: leaving.map(({ block }) => block), outs: leaving.map(({ out }) => out), onRange: onFrame };
}
