/**
 * The contract between an engine and a device: the engine loads a program once, runs it once per step, and moves KV blocks in and
 * out.
 *
 * A *program* is a list of operations over named buffers; a *device* decides how they run. Every call is asynchronous, so that a GPU
 * can answer when it is done. Dimension words: rows (tokens in the batch), samples (rows whose logits are wanted), hidden, heads,
 * kv_heads, head_dim, blocks, block_size, vocab, inner.
 *
 * E2: within one numerics class every device that implements this contract computes the same bits for a token whatever the batch,
 * the chunk or the thread count. Reductions have one order, fixed by shapes and absolute positions.
 */

import assert from 'node:assert/strict';
import type { SampleParams, LogitState } from './sampling.ts';
import type { KvLayout, LayerRange } from './kv_layout.ts';
import type { Program, TensorRows } from './program.ts';
import type { StoredMatrix } from './weights/stored_columns.ts';
import type { StoredRows } from './weights/stored_rows.ts';
import type { WeightFormat } from './weights/weight_format.ts';

/** Source of a model's weights, read a slice at a time, so that a process never holds two copies. */
export interface WeightSource {
  /** Rows in order, as they are stored; a slice is at most a few MiB. Its bytes are only valid until the next one of the same call; two may be open. */
  slices(rows: TensorRows): AsyncIterable<StoredRows>;
  /** Returns a matrix as a sequence of input ranges where the file stores all rows of an input together (GPTQ, AWQ), else undefined. */
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

/** Sizes that the caller fixes at load: buffers are made for them once, so that no step allocates. */
export interface LoadOptions {
  readonly maxRows: number;
  readonly maxSamples: number;
  readonly maxBlocksPerSequence: number;
  /** Storage format of matrices; vectors (norms, biases) are always f32. */
  readonly weightFormat: WeightFormat;
  /** Layout of a block's KV. Its frames are the layer ranges that a step can export as soon as their layers are computed. */
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
 * Section of a step that begins or ends just before the attention of a layer. The caller runs the sections of a step in order, with
 * the same rows and no other step in between: the device keeps the rows' intermediate values from one section to the next.
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
  /** Sample requests in ascending order of their rows; one row may have several. */
  readonly samples?: readonly SampleRequest[];
  /**
   * Name of an adapter to apply beside the model's own weights. No device has adapters yet: a step that names one fails with
   * DeviceError.
   */
  readonly adapter?: string;
}

/** Request for the logits of one row: its best candidates, chosen tokens, the whole row, or a token sampled by the device. */
export interface SampleRequest {
  /** Index of the row within the segment, from 0. */
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
  /**
   * Slot that keeps the sampled token for later steps ({@link fromSlot}) until the next sample into the same slot; less than
   * maxSamples.
   */
  readonly slot: number;
  /** The pages that are its {@link LogitState}. The sampled token is counted in the latter, whether there are penalties or not. */
  readonly biasPage?: number | undefined;
  readonly countsPage?: number | undefined;
  /** A bit a token, least significant first; at most {@link MAX_MASKS} samples of a step have one. */
  readonly allowedTokens?: Uint32Array;
}

/**
 * Returns the segment token that stands for the token last sampled into `slot`, in the step before or earlier. When the last sample
 * found no token, the device computes the row with an arbitrary one.
 */
export function fromSlot(slot: number): number {
  return SLOT_BIT + slot;
}

/** Bit that marks a segment's token as a slot number; token ids are below this value. */
export const SLOT_BIT = 0x80000000;

/** Result of one {@link SampleRequest}. */
export interface SampleResult {
  /** Sampled token; NO_TOKEN when no token could be sampled, or the request had no `sample`. */
  readonly token: number;
  /** Logit of the sampled token; NaN unless the request also wants candidates. */
  readonly tokenLogit: number;
  /** Descending by logit, ties by ascending id. */
  readonly candidateIds: Uint32Array;
  readonly candidateLogits: Float32Array;
  readonly logSumExp: number;
  /** In the order of `askedTokens`. */
  readonly askedLogits: Float32Array;
  readonly fullRow?: Float32Array;
}

/** Maximum number of candidates, and of asked tokens, in one sample request. */
export const MAX_CANDIDATES = 128;
/** Maximum number of samples in a step that have a mask of allowed tokens. */
export const MAX_MASKS = 64;
/** Full rows that a step may ask for. */
export const MAX_FULL_ROWS = 8;

/**
 * Returns the sample requests of a batch in order. @throws DeviceError when a segment names an adapter; AssertionError when a request
 * or the batch is beyond the limits fixed at load.
 */
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

/** A program loaded on a device: runs steps, and moves KV blocks in and out. */
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
  /** Vocabulary that the program samples from (0 when the program has no logits), and the number of sampler pages. */
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

/** Cost of all launches with one label in a step. */
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

/** A machine that computes programs: the CPU through WebAssembly, or a GPU through WebGPU. */
export interface Device {
  readonly kind: 'wasm' | 'webgpu';
  /** A line for people: what computes here. */
  readonly description: string;
  /** Instances of one class give the same bits (E2). */
  readonly numericsClass: string;
  /** Numerics class to use instead of `numericsClass` where the configuration lets instances of different classes share blocks. */
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
