/**
 * What an engine asks of a machine: load a program once, run it once per step, move KV blocks in and out.
 *
 * A *program* is a list of operations over named buffers; a *device* decides how they run. Nothing is synchronous, so that a
 * GPU can answer when it is done. Dimension words: rows (tokens in the batch), samples (rows whose logits are wanted),
 * hidden, heads, kv_heads, head_dim, blocks, block_size, vocab, inner.
 *
 * E2: within one numerics class every device that implements this gives the same bits for a token whatever the batch, the
 * chunk or the thread count. Reductions have one order, given by shapes and absolute positions.
 */

import assert from 'node:assert/strict';
import type { SampleParams, LogitState } from './sampling.ts';
import type { KvLayout, LayerRange } from './kv_layout.ts';
import type { Program, TensorRows } from './program.ts';
import type { StoredMatrix } from './weights/stored_columns.ts';
import type { StoredRows } from './weights/stored_rows.ts';
import type { WeightFormat } from './weights/weight_format.ts';

/** Where weights come from, a slice at a time, so that a process never holds two copies. */
export interface WeightSource {
  /** Rows in order, as they are stored; a slice is at most a few MiB. Its bytes are only valid until the next one of the same call; two may be open. */
  slices(rows: TensorRows): AsyncIterable<StoredRows>;
  /** The same by stretches of inputs, where they lie so. */
  matrix?(rows: TensorRows): Promise<StoredMatrix | undefined>;
  /** For benchmarks on webgpu: the device makes random values by itself and never calls `slices`. */
  readonly randomSeed?: number;
}

/** For benchmarks and probes. */
export function randomWeightsOnDevice(randomSeed: number): WeightSource {
  return {
    randomSeed,
    slices() {
      throw new Error('random weights are made on the device');
    },
  };
}

/** What the caller fixes at load: sizes of everything a step may need, so that the steady state allocates nothing. */
export interface LoadOptions {
  readonly maxRows: number;
  readonly maxSamples: number;
  readonly maxBlocksPerSequence: number;
  /** What matrices are held in; vectors (norms, biases) are always f32. */
  readonly weightFormat: WeightFormat;
  /** Where the KV of a block lies; its frames are the ranges of layers in which a step may give blocks away while it runs. */
  readonly kv: KvLayout;
  /** Blocks that there must be and may be: the device takes as many as fit. */
  readonly numBlocks: { readonly min: number; readonly max: number };
  /** Room for what samples remember of a sequence, one value a token of the vocabulary each; none when it does not say. */
  readonly samplerPages?: number;
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
  /** A steady clock, for a device that predicts what a step takes; the machine's own when it does not say. */
  readonly nowMs?: (() => number) | undefined;
}

/** Blocks that a step fills, copied out while it computes. */
export interface StepExport {
  /** At most `numExportable`. */
  readonly blocks: readonly number[];
  /** blockBytes each; may lie in shared memory. */
  readonly outs: readonly Uint8Array[];
  /** The bytes of frame `range` of the layout are there, of all blocks; called in order, before the step returns. */
  readonly onRange: (range: number) => void;
}

/**
 * Of a step, what is between the attention of two layers. Its parts are given one after the other, the same rows, and no other step between
 * them: what a row is so far stays where it is.
 */
export interface StepSection {
  /** The part before stopped before the attention of this layer; undefined: from the beginning. */
  readonly from: number | undefined;
  /** Stops before the attention of this layer, and samples nothing; undefined: to the end. */
  readonly until: number | undefined;
}

/** How a step is run, when not in one go: one or the other. */
export interface RunOptions {
  readonly exports?: StepExport | undefined;
  readonly part?: StepSection | undefined;
}

/** Kernels of a model depend on these, besides its program. */
export interface ProbeOptions extends Pick<LoadOptions, 'weightFormat'> {
  readonly kv: Pick<KvLayout, 'blockSize' | 'dtype'>;
}

/** Consecutive rows of one sequence. */
export interface Segment {
  /** Ids, or {@link fromSlot}. */
  readonly tokens: ArrayLike<number>;
  /** Absolute position of the first token. */
  readonly start: number;
  /** Block ids that hold positions [0, start + tokens.length). */
  readonly blockTable: ArrayLike<number>;
  /** Of rows in ascending order; of one row there may be several. */
  readonly samples?: readonly SampleRequest[];
  /** What the model computes with besides its own weights. @throws DeviceError: no device has adapters yet. */
  readonly adapter?: string;
}

export interface SampleRequest {
  /** Of the segment, counted from 0. */
  readonly row: number;
  /** Best logits wanted, at most MAX_CANDIDATES; with 0 the log-sum-exp is not computed either. */
  readonly numCandidates: number;
  /** Tokens whose logits are wanted besides, at most MAX_CANDIDATES. */
  readonly askedTokens: readonly number[];
  /** At most {@link MAX_FULL_ROWS} in a step. */
  readonly isFullRowWanted: boolean;
  readonly sample?: DeviceSampleParams;
}

/** A token that the device samples, as {@link SampleParams} defines it. */
export interface DeviceSampleParams extends SampleParams {
  /** Where later steps find it, until the next sample into it; below maxSamples. */
  readonly slot: number;
  /** The pages that are its {@link LogitState}. The sampled token is counted in the latter, whether there are penalties or not. */
  readonly biasPage?: number | undefined;
  readonly countsPage?: number | undefined;
  /** A bit a token, least significant first; at most {@link MAX_MASKS} samples of a step have one. */
  readonly allowedTokens?: Uint32Array;
}

/** As a token of a segment: the one that was sampled last into `slot`, in the step before or earlier. Nothing was sampled: some token. */
export function fromSlot(slot: number): number {
  return SLOT_BIT + slot;
}

export const SLOT_BIT = 0x80000000;

export interface SampleResult {
  /** What was sampled; NO_TOKEN when there was nothing to sample, or no sample was asked for. */
  readonly token: number;
  /** Its logit; NaN unless candidates are wanted too. */
  readonly tokenLogit: number;
  /** Descending by logit, ties by ascending id. */
  readonly candidateIds: Uint32Array;
  readonly candidateLogits: Float32Array;
  readonly logSumExp: number;
  /** In the order of `askedTokens`. */
  readonly askedLogits: Float32Array;
  readonly fullRow?: Float32Array;
}

export const MAX_CANDIDATES = 128;
export const MAX_MASKS = 64;
/** Full rows that a step may ask for. */
export const MAX_FULL_ROWS = 8;

/** What a batch asks for, in order. @throws DeviceError for what no device does yet. */
export function samplesOf(batch: readonly Segment[], { maxSamples, samplerPages = 0 }: LoadOptions): SampleRequest[] {
  const requests: SampleRequest[] = [];
  let numMasks = 0;
  batch.forEach(({ tokens, samples, adapter }) => {
    if (adapter !== undefined) throw new DeviceError(`there is no adapter ${adapter}`);
    samples?.forEach((request) => {
      checkSample(request, tokens.length, maxSamples, samplerPages);
      if (request.sample?.allowedTokens) numMasks++;
      requests.push(request);
    });
  });
  assert(requests.length <= maxSamples, `a step samples at most ${maxSamples} rows`);
  const numRows = requests.filter(({ isFullRowWanted }) => isFullRowWanted).length;
  assert(numRows <= MAX_FULL_ROWS, `a step gives at most ${MAX_FULL_ROWS} full rows`);
  assert(numMasks <= MAX_MASKS, `at most ${MAX_MASKS} samples of a step have a mask`);
  return requests;
}

/** Messages are made when they are needed: this is done for every token. */
function checkSample(
  { row, numCandidates, askedTokens, sample }: SampleRequest,
  numRows: number,
  maxSamples: number,
  samplerPages: number,
): void {
  if (row < 0 || row >= numRows) assert.fail(`a segment of ${numRows} rows has no ${row}`);
  if (numCandidates > MAX_CANDIDATES) assert.fail(`at most ${MAX_CANDIDATES} candidates`);
  if (askedTokens.length > MAX_CANDIDATES) assert.fail(`at most ${MAX_CANDIDATES} asked tokens`);
  if (!sample) return;
  const { slot, biasPage = -1, countsPage = -1 } = sample;
  if (slot >= maxSamples) assert.fail(`there is no slot ${slot} to sample into`);
  if (Math.max(biasPage, countsPage) >= samplerPages)
    assert.fail(`there are ${samplerPages} pages, not ${biasPage} and ${countsPage}`);
}

/** Samples by the definition (sampling.ts) from one row of logits at a time. */
export interface RowSampler {
  /** @returns the token. */
  sample(logits: Float32Array, sample: SampleParams, state?: LogitState): number;
}

export interface Executable {
  /** All that it has, where it is one piece of the machine's memory. */
  readonly memoryBytes?: number;
  readonly blockBytes: number;
  readonly numBlocks: number;
  /** Rows that a step should have at most, by what steps took: a driver ends a GPU's work that takes long. Changes with every step. */
  readonly maxRowsNow: number;
  /** Steps that it takes while one runs: 0 when the caller's thread computes. */
  readonly numAhead: number;
  /** Blocks that a step can export while it runs. */
  readonly numExportable: number;
  /** What it can sample from. */
  readonly sampling: { readonly vocab: number; readonly numPages: number };
  /**
   * One step: results for what the batch asks for, in its order. Steps run in the order of calls; a further one may be given before
   * the one before it has returned.
   */
  run(batch: readonly Segment[], options?: RunOptions): Promise<SampleResult[]>;
  /** Blocks' KV out of the device; each of `outs` has blockBytes bytes, and may lie in shared memory. */
  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void>;
  /** A step that is run afterwards reads them. With `range`, payloads are of its layers only. */
  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void>;
  /** Values of a sample page from token `first` on, for steps that are run afterwards. */
  writeSamplerPage(page: number, first: number, values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): void;
  /** Samples on the calling thread, from rows that a step gave back whole. */
  rowSampler(): RowSampler;
  /** For tests and programs without `embed`: a named buffer's first rows. */
  write(buffer: string, values: Float32Array): Promise<void>;
  read(buffer: string, numRows: number): Promise<Float32Array>;
  close(): Promise<void>;
}

/** What the launches of one label cost in a step. */
export interface KernelProfile {
  readonly label: string;
  readonly numLaunches: number;
  readonly ms: number;
  /** Read from memory at least, and f32 or integer operations, where the work is known; else 0. */
  readonly bytes: number;
  readonly flops: number;
  /** Whether they are of integers; int4 has its own instructions. */
  readonly kind?: 'f32' | 'int8' | 'int4';
}

export interface Device {
  readonly kind: 'wasm' | 'webgpu';
  /** A line for people: what computes here. */
  readonly description: string;
  /** Instances of one class give the same bits (E2). */
  readonly numericsClass: string;
  /** The same, where people let classes meet that they know to differ. */
  readonly mixedNumericsClass: string;
  /** Each says in a clause what is not as people who chose the device would expect; they go into its instance's log. */
  readonly notes: readonly string[];
  /** Why nothing that it computes can be trusted, once that was seen: nobody serves with it. */
  readonly fault?: string | undefined;
  /** Before a model is loaded: tries whether E2 holds here, by kernels that the model will use; else notes and numericsClass say so. */
  checkRows(program: Program, options: ProbeOptions): Promise<void>;
  /** Resolves with the reason when the device is gone for good; whatever runs then rejects. */
  readonly lost: Promise<string>;
  /** For drills and tests: loses the device. */
  destroy(): void;
  /** @throws DeviceError when the program needs more memory than there is, or an operation the device lacks. */
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<Executable>;
}

/** The device cannot do what was asked; the message says what to change. */
export class DeviceError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'DeviceError';
  }
}
