/** One step of the device: the rows that each sequence computes in it, and what comes back for them. */
import { fromSlot, type SampleRequest, type Segment, type StepExport } from '../../kernels/device.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import type { Embeddings } from './embeddings.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { SegmentStates } from './sequence_states.ts';
import { promptRequest, type SamplingState } from './sampling_state.ts';
import type { Sequence } from './sequence.ts';
import type { PlannedRows } from './step_plan.ts';

const NO_SEQUENCES: readonly Sequence[] = [];
const NO_POSITIONS = { start: 0, end: 0 };

/** Rows that one step computes for one sequence. */
export interface StepRows {
  readonly sequence: Sequence;
  /** Tokens [start, start + count) are computed; with the fetched blocks after them, the KV reaches up to `after`. */
  readonly start: number;
  readonly count: number;
  readonly after: number;
  /** Positions of tokens of the prompt whose log-probabilities are asked for: [start, end). */
  readonly prompt: { readonly start: number; readonly end: number };
  /** Positions of the tokens that are sampled. */
  readonly sampled: readonly number[];
  /** Where the device writes the hidden states of the last of these rows; undefined when none are wanted. */
  readonly hidden?: Float32Array | undefined;
  /** Recurrent states that the rows read and write; undefined for a model without, and for samples of another sequence's row. */
  readonly states?: SegmentStates | undefined;
}

/** A block that a step fills. */
export interface FilledBlock {
  readonly block: number;
  readonly hash: AnchoredHash;
}

/** Blocks that are exported while a step computes them. */
export interface EarlyExport {
  /** Destination of each filled block, by index in the step; undefined for a block that is exported later. */
  readonly outs: readonly (Uint8Array | undefined)[];
  /** Called for each frame, in order, when the frame's bytes of all these blocks are in `outs`. */
  readonly onFrame: (frame: number) => void;
  /** Called when the step is complete. */
  readonly onEnd: () => void;
}

/** Sequences that start from the blocks of the one whose row a step samples from, sampled from the same row; in order. */
type Fork = (leader: Sequence) => readonly Sequence[];

/** A step that is ready for the device. */
export interface BuiltStep {
  readonly rows: readonly StepRows[];
  readonly batch: readonly Segment[];
  readonly filled: readonly FilledBlock[];
}

interface StepContext {
  readonly sampling: SamplingState;
  readonly embeddings: Embeddings;
  readonly blockSize: number;
  readonly fork: Fork;
  readonly states: RecurrentStates | undefined;
}

/** Builds the batch of step number `step`, forks the followers of sequences that it samples from, and advances all cursors. */
export function buildStep(
  work: readonly PlannedRows<Sequence>[],
  { sampling, embeddings, blockSize, fork, states: recurrent }: StepContext,
  step: number,
): BuiltStep {
  const filled: FilledBlock[] = [];
  const batch: Segment[] = [];
  const rows: StepRows[] = [];
  for (const { sequence, count } of work) {
    const { submitted: start } = sequence.cursor;
    const end = start + count;
    const sampled = sequence.samplesAt(end) ? [sequence.length] : [];
    const prompt = sequence.promptRows(start, end);
    const tokens = tokensOf(sequence, start, end, sampling);
    const blockTable = sequence.blocks;
    const states = recurrent?.begin(sequence, start, count);
    const forked = sampled.length > 0 ? fork(sequence) : NO_SEQUENCES;
    const own = samplesOf(sequence, prompt, sampled, start, count, sampling);
    const samples =
      forked.length === 0 ? own : [...(own ?? []), ...forked.map((one) => sampling.request(one, end, count - 1))];
    // Written out because a spread would allocate a second object for every token of a decode step.
    const hidden = embeddings.roomFor(sequence, start, end);
    if (hidden || states) batch.push(withStates({ tokens, start, blockTable, hidden, samples, states }));
    else batch.push(samples ? { tokens, start, blockTable, samples } : { tokens, start, blockTable });
    for (let index = Math.floor(start / blockSize); index < Math.floor(end / blockSize); index++) {
      const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
      if (block !== undefined && hash) filled.push({ block, hash });
    }
    sequence.cursor.submit(count, sampled.length);
    sequence.lastStep = step;
    sequence.passFetched();
    rows.push({ sequence, start, count, after: sequence.cursor.submitted, prompt, sampled, hidden, states });
    // Their results come right after those of the sequence in whose segment they are sampled.
    for (const follower of forked) {
      follower.cursor.submit(0, 1);
      follower.lastStep = step;
      rows.push({ sequence: follower, start: end, count: 0, after: end, prompt: NO_POSITIONS, sampled: [end] });
    }
  }
  return { rows, batch, filled };
}

/** Returns the segment of rows whose hidden states are wanted, or which have recurrent states. */
function withStates({
  tokens,
  start,
  blockTable,
  hidden,
  samples,
  states,
}: Pick<Segment, 'tokens' | 'start' | 'blockTable'> & {
  readonly hidden: Float32Array | undefined;
  readonly samples: readonly SampleRequest[] | undefined;
  readonly states: SegmentStates | undefined;
}): Segment {
  return {
    tokens,
    start,
    blockTable,
    ...(hidden ? { hidden } : {}),
    ...(samples && !hidden ? { samples } : {}),
    ...(states ? { state: states.segment } : {}),
  };
}

/**
 * Returns the ids of tokens [start, end). A token that a submitted step samples is named by its sampler slot, where the device finds
 * it.
 */
function tokensOf(sequence: Sequence, start: number, end: number, sampling: SamplingState): ArrayLike<number> {
  const { tokens } = sequence;
  // One row is what most steps have of a sequence.
  if (end - start === 1) return [tokens.at(start) ?? fromSlot(sampling.slotOf(sequence))];
  const known = tokens.range(start, end);
  if (known.length === end - start) return known;
  return [...known, ...new Array<number>(end - start - known.length).fill(fromSlot(sampling.slotOf(sequence)))];
}

/** Samples of the rows [start, start + count) of a sequence; undefined: none. */
function samplesOf(
  sequence: Sequence,
  prompt: StepRows['prompt'],
  sampled: StepRows['sampled'],
  start: number,
  count: number,
  sampling: SamplingState,
): readonly SampleRequest[] | undefined {
  // Most steps sample one token of a sequence, and nothing else.
  if (prompt.start === prompt.end && sampled.length === 1) return [sampling.request(sequence, sampled[0]!, count - 1)];
  const samples: SampleRequest[] = [];
  if (prompt.start < prompt.end) {
    const tokens = sequence.tokens.range(prompt.start, prompt.end);
    const numTop = numPromptTop(sequence);
    tokens.forEach((token, i) => samples.push(promptRequest(prompt.start + i - 1 - start, token, numTop)));
  }
  for (let i = 0; i < sampled.length; i++) samples.push(sampling.request(sequence, sampled[i]!, count - 1));
  return samples.length > 0 ? samples : undefined;
}

/** Alternatives that are wanted with each token of the prompt. */
export function numPromptTop({ request: { request } }: Sequence): number {
  return Math.max(0, request.promptLogprobs - 1);
}

/** Returns the filled blocks that are exported while the step runs, with their destinations. */
export function exportOf({ outs, onFrame }: EarlyExport, filled: readonly FilledBlock[]): StepExport {
  const leaving = filled.flatMap(({ block }, i) => {
    const out = outs[i];
    return out ? [{ block, out }] : [];
  });
  return { blocks: leaving.map(({ block }) => block), outs: leaving.map(({ out }) => out), onRange: onFrame };
}
