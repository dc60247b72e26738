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
import type { MemoryNeeds, MemoryRoom } from './memory_needs.ts';
import type { Program, TensorRows } from './program.ts';
import type { StateLayout } from './state_layout.ts';
import type { StoredMatrix } from './weights/stored_columns.ts';
import type { StoredRows } from './weights/stored_rows.ts';
import type { WeightFormat } from './weights/weight_format.ts';

/** Source of a model's weights, read a slice at a time, so that a process never holds two copies. */
export interface WeightSource {
  /**
   * Yields the rows in order, in the format in which they are stored, in slices of at most a few MiB. A slice is valid until the next
   * slice of the same call; two calls may be open at a time.
   */
  slices(rows: TensorRows): AsyncIterable<StoredRows>;
  /** Returns a matrix as a sequence of input ranges where the file stores all rows of an input together (GPTQ, AWQ), else undefined. */
  matrix?(rows: TensorRows): Promise<StoredMatrix | undefined>;
  /**
   * Seed of random weights, for benchmarks and probes on webgpu: when it is set, the device makes the values itself and never calls
   * `slices`.
   */
  readonly randomSeed?: number;
}

/** Returns a source of random weights, for benchmarks and probes: the device makes the values itself, and `slices` throws. */
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
  /** Layout of a sequence's recurrent state, for a program that has recurrent layers. */
  readonly state?: StateLayout | undefined;
  /** Number of slots for such states; loading fails when they do not fit. */
  readonly numStateSlots?: number;
  /** Number of KV blocks: the device allocates as many as fit, up to `max`; loading fails when fewer than `min` fit. */
  readonly numBlocks: { readonly min: number; readonly max: number };
  /** Number of sampler pages, each with one 4-byte value per token of the vocabulary (biases or counts of a sequence); 0 by default. */
  readonly samplerPages?: number;
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
  /** Steady clock in milliseconds, for a device that predicts how long steps take; by default the machine's own. */
  readonly nowMs?: (() => number) | undefined;
}

/** Blocks that a step fills, copied out while it computes. */
export interface StepExport {
  /** Ids of the blocks, at most `numExportable` of the executable. */
  readonly blocks: readonly number[];
  /** Destination of each block, blockBytes long; may lie in shared memory. */
  readonly outs: readonly Uint8Array[];
  /**
   * Called with a frame's index when the bytes of that frame, of all blocks, are in `outs`. Calls come in the order of frames, before
   * the step returns.
   */
  readonly onRange: (range: number) => void;
}

/**
 * Section of a step that begins or ends just before the attention of a layer; a layer without attention stands for the next one that
 * has it. The caller runs the sections of a step in order, with
 * the same rows and no other step in between: the device keeps the rows' intermediate values from one section to the next.
 */
export interface StepSection {
  /** Layer before whose attention the section begins, where the section before it ended; undefined: from the beginning of the step. */
  readonly from: number | undefined;
  /** Layer before whose attention the section ends, sampling nothing; undefined: to the end of the step. */
  readonly until: number | undefined;
}

/**
 * Options of a step, at most one of them: `exports` copies blocks out while the step runs, `section` runs only a section of the
 * step.
 */
export interface RunOptions {
  readonly exports?: StepExport | undefined;
  readonly section?: StepSection | undefined;
}

/** Load options on which a model's kernels depend besides its program. */
export interface ProbeOptions extends Pick<LoadOptions, 'weightFormat'> {
  readonly kv: Pick<KvLayout, 'blockSize' | 'dtype'>;
}

/**
 * Recurrent state of a segment. Two segments of a step never touch the same slot, except that several may begin with a slot that no
 * segment of the step writes.
 */
export interface SegmentState {
  /** Slot with the state after the token before the segment; undefined: the segment begins its sequence, with the zero state. */
  readonly from?: number | undefined;
  /**
   * Where the state after the first `rows` rows of the segment is written, `rows` ascending. The slot may be the one that the segment
   * begins with.
   */
  readonly saves: readonly { readonly rows: number; readonly slot: number }[];
}

/** Consecutive rows of one sequence. */
export interface Segment {
  /** Token ids, or {@link fromSlot} for tokens that the device has sampled itself. */
  readonly tokens: ArrayLike<number>;
  /** Absolute position of the first token. */
  readonly start: number;
  /** Block ids that hold positions [0, start + tokens.length). */
  readonly blockTable: ArrayLike<number>;
  /** Where the segment's recurrent state is; each segment of a program with recurrent layers has it. */
  readonly state?: SegmentState | undefined;
  /** Sample requests in ascending order of their rows; one row may have several. */
  readonly samples?: readonly SampleRequest[];
  /**
   * Receives the hidden states of the segment's last rows before the step returns, [rows, hiddenWidth] f32: the values that the model
   * multiplies with its output weight. Only the last section of a step fills it.
   */
  readonly hidden?: Float32Array;
  /**
   * Name of an adapter to apply besides the model's own weights. No device has adapters yet: a step that names one fails with
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
  /** Whether the whole row of logits is wanted; at most {@link MAX_FULL_ROWS} requests of a step may set this. */
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
  /**
   * Sampler pages that hold the sequence's {@link LogitState}; undefined when the sequence has no biases, or no counts. The device
   * counts the sampled token in `countsPage`, with or without penalties.
   */
  readonly biasPage?: number | undefined;
  readonly countsPage?: number | undefined;
  /**
   * Mask of allowed tokens, one bit per token, least significant first; undefined allows all tokens. At most {@link MAX_MASKS} samples
   * of a step have a mask.
   */
  readonly allowedTokens?: Uint32Array | undefined;
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
  /** Ids of the best logits, descending by logit, ties by ascending id. */
  readonly candidateIds: Uint32Array;
  readonly candidateLogits: Float32Array;
  readonly logSumExp: number;
  /** Logits of the asked tokens, in the order of `askedTokens`. */
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
    if (adapter !== undefined)
      throw new DeviceError(`this device has no adapters: it cannot apply the adapter ${adapter}`);
    samples?.forEach((request) => {
      checkSample(request, tokens.length, maxSamples, samplerPages);
      if (request.sample?.allowedTokens) numMasks++;
      requests.push(request);
    });
  });
  assert(requests.length <= maxSamples, `a step samples at most ${maxSamples} rows`);
  const numRows = requests.filter(({ isFullRowWanted }) => isFullRowWanted).length;
  assert(numRows <= MAX_FULL_ROWS, `a step returns at most ${MAX_FULL_ROWS} full rows of logits`);
  assert(numMasks <= MAX_MASKS, `at most ${MAX_MASKS} samples of a step have a mask`);
  return requests;
}

/** Rows [first, first + out.length / width) of a step whose hidden states are wanted, and where they are written. */
export interface HiddenRows {
  readonly first: number;
  readonly out: Float32Array;
}

const NO_HIDDEN: readonly HiddenRows[] = [];

/**
 * Returns the rows of a batch whose hidden states are wanted, in order. `width` is that of the program's hidden states, 0 for none.
 * @throws AssertionError when a segment wants hidden states that are not there.
 */
export function hiddenRowsOf(batch: readonly Segment[], width: number): readonly HiddenRows[] {
  // Most steps want none, and allocate nothing here.
  if (batch.every(({ hidden }) => hidden === undefined)) return NO_HIDDEN;
  const wanted: HiddenRows[] = [];
  let end = 0;
  for (const { tokens, hidden: out } of batch) {
    end += tokens.length;
    if (!out) continue;
    const count = out.length / width;
    if (!(width > 0 && Number.isInteger(count) && count > 0 && count <= tokens.length))
      assert.fail(`${out.length} values are not hidden states, ${width} wide, of ${tokens.length} rows`);
    wanted.push({ first: end - count, out });
  }
  return wanted;
}

/**
 * Throws AssertionError for a sample request beyond the limits fixed at load. Called for every token, so messages are built only on
 * failure.
 */
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
    assert.fail(`there are ${samplerPages} sampler pages: ${biasPage} and ${countsPage} must be below that`);
}

/** Samples by the definition (sampling.ts) from one row of logits at a time. */
export interface RowSampler {
  /** Samples a token from `logits`. Returns its id, or NO_TOKEN. */
  sample(logits: Float32Array, sample: SampleParams, state?: LogitState): number;
}

/** A program loaded on a device: runs steps, and moves KV blocks in and out. */
export interface Executable {
  /** Bytes of all memory of the executable where that is memory of the machine; undefined on a GPU. */
  readonly memoryBytes?: number;
  readonly blockBytes: number;
  readonly numBlocks: number;
  /** Slots for recurrent states; 0 when the program has no recurrent layers. */
  readonly numStateSlots: number;
  /**
   * Maximum rows that the next step should have, predicted from the duration of past steps: drivers abort GPU work that takes too
   * long. May change with every step.
   */
  readonly maxRowsNow: number;
  /** Steps that may be submitted while one runs; 0 when the calling thread computes. */
  readonly numAhead: number;
  /** Blocks that a step can export while it runs. */
  readonly numExportable: number;
  /** Vocabulary that the program samples from (0 when the program has no logits), and the number of sampler pages. */
  readonly sampling: { readonly vocab: number; readonly numPages: number };
  /** Values of a row's hidden state; 0 when the program returns none. */
  readonly hiddenWidth: number;
  /**
   * Runs one step and returns the results of the batch's sample requests, in their order. Steps run in the order of calls; up to
   * `numAhead` further steps may be submitted before the first has returned.
   */
  run(batch: readonly Segment[], options?: RunOptions): Promise<SampleResult[]>;
  /** Copies the KV of blocks out of the device. Each of `outs` has blockBytes bytes, and may lie in shared memory. */
  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void>;
  /** Copies KV into blocks, for steps that are run afterwards. With `range`, payloads hold the bytes of those layers only. */
  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void>;
  /**
   * Copies the KV of blocks `from[i]` into blocks `to[i]`, all layers: what steps submitted before have written, for steps that are run
   * afterwards. No block is in both lists, and none twice in `to`.
   */
  copyBlocks(from: readonly number[], to: readonly number[]): void;
  /** Copies states out of the device. Each of `outs` has slotBytes bytes, and may lie in shared memory. */
  exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void>;
  /** Copies states into slots, for steps that are run afterwards. With `range`, payloads hold the bytes of those layers only. */
  importStates(slots: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void>;
  /**
   * Copies the state in slot `from[i]` into slot `to[i]`: what steps submitted before have written, for steps that are run afterwards.
   * No slot is in both lists, and none twice in `to`.
   */
  copyStates(from: readonly number[], to: readonly number[]): void;
  /** Writes values of a sampler page from token `first` on, for steps that are run afterwards. */
  writeSamplerPage(page: number, first: number, values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): void;
  /** Returns a sampler that runs on the calling thread, for rows of logits that a step returned whole. */
  rowSampler(): RowSampler;
  /** Writes the first rows of a named buffer, [rows, width] f32; for tests, and for programs without `embed`. */
  write(buffer: string, values: Float32Array): Promise<void>;
  /** Reads the first rows of a named buffer, [rows, width] f32; for tests. */
  read(buffer: string, numRows: number): Promise<Float32Array>;
  /** Releases the memory of the program, after the steps that are running. */
  close(): Promise<void>;
}

/** Cost of all launches with one label in a step. */
export interface KernelProfile {
  readonly label: string;
  readonly numLaunches: number;
  readonly ms: number;
  /** Minimum bytes read from memory, and `flops`, the f32 or integer operations; both are 0 where the cost is not known. */
  readonly bytes: number;
  readonly flops: number;
  /** Type of the operations that `flops` counts; int4 products have instructions of their own. */
  readonly kind?: 'f32' | 'int8' | 'int4';
}

/** A machine that computes programs: the CPU through WebAssembly, or a GPU through WebGPU. */
export interface Device {
  readonly kind: 'wasm' | 'webgpu';
  /** One line for people that names the device and its kernels. */
  readonly description: string;
  /** Numerics class: devices of one class compute the same bits (E2). */
  readonly numericsClass: string;
  /** Numerics class to use instead of `numericsClass` where the configuration lets instances of different classes share blocks. */
  readonly mixedNumericsClass: string;
  /** Clauses for the instance's log about what the user of this device might not expect, such as matrix units that are not used. */
  readonly notes: readonly string[];
  /** Reason why the device's results cannot be trusted, set when a check fails; a model is then not loaded on the device. */
  readonly fault?: string | undefined;
  /**
   * Checks, before a model is loaded, whether E2 holds on this device for kernels that the model will use. If not, `notes` and
   * `numericsClass` state it; `fault` is set when the results are unusable.
   */
  checkRows(program: Program, options: ProbeOptions): Promise<void>;
  /** Returns the memory that loading the program would take; nothing is allocated. @throws DeviceError for shapes that the kernels lack. */
  needs(program: Program, options: LoadOptions): MemoryNeeds;
  /**
   * Returns the memory that there is for a program that is loaded with so many KV blocks. @throws DeviceError when it must be known, and
   * cannot be found out.
   */
  room(numBlocks: LoadOptions['numBlocks']): Promise<MemoryRoom>;
  /** Resolves with the reason when the device is gone for good; whatever runs then rejects. */
  readonly lost: Promise<string>;
  /** Loses the device, for fault injection and tests. */
  destroy(): void;
  /**
   * Loads a program: its weights, buffers and KV blocks. @throws DeviceError when the program needs more memory than there is, or an
   * operation that the device lacks.
   */
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<Executable>;
}

/** The device cannot do what was asked; the message says what to change. */
export class DeviceError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'DeviceError';
  }
}
