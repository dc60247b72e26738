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
import type { KvDtype, Program } from './program.ts';
import type { StoredRows } from './stored_rows.ts';
import type { WeightFormat } from './weight_format.ts';

/** Where weights come from, a slice at a time, so that a process never holds two copies. */
export interface WeightSource {
  /** Rows of the tensor in order, as they are stored; a slice is at most a few MiB. Its bytes are only valid until the next one. */
  slices(tensor: string): AsyncIterable<StoredRows>;
  /** For benchmarks on webgpu: the device makes random values by itself and never calls `slices`. */
  readonly randomSeed?: number;
}

/** What the caller fixes at load: sizes of everything a step may need, so that the steady state allocates nothing. */
export interface LoadOptions {
  readonly maxRows: number;
  readonly maxSamples: number;
  readonly maxBlocksPerSequence: number;
  /** What matrices are held in; vectors (norms, biases) are always f32. */
  readonly weightFormat: WeightFormat;
  readonly kvDtype: KvDtype;
  readonly blockSize: number;
  /** Blocks that there must be and may be: the device takes as many as fit. */
  readonly numBlocks: { readonly min: number; readonly max: number };
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
}

/** Consecutive rows of one sequence. */
export interface Segment {
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
  /** Best logits wanted, at most MAX_CANDIDATES. */
  readonly numCandidates: number;
  /** Tokens whose logits are wanted besides (penalties, bias), at most MAX_CANDIDATES. */
  readonly askedTokens: readonly number[];
  readonly isFullRowWanted: boolean;
  /** A bit a token, least significant first: only these are candidates. @throws DeviceError: no device masks yet. */
  readonly allowedTokens?: Uint32Array;
}

export interface SampleResult {
  /** Descending by logit, ties by ascending id. */
  readonly candidateIds: Uint32Array;
  readonly candidateLogits: Float32Array;
  readonly logSumExp: number;
  /** In the order of `askedTokens`. */
  readonly askedLogits: Float32Array;
  readonly fullRow?: Float32Array;
}

export const MAX_CANDIDATES = 128;

/** What a batch asks for, in order. @throws DeviceError for what no device does yet. */
export function samplesOf(batch: readonly Segment[]): SampleRequest[] {
  const requests: SampleRequest[] = [];
  for (const { tokens, samples = [], adapter } of batch) {
    if (adapter !== undefined) throw new DeviceError(`there is no adapter ${adapter}`);
    for (const request of samples) {
      assert(
        request.row >= 0 && request.row < tokens.length,
        `a segment of ${tokens.length} rows has no ${request.row}`,
      );
      assert(request.numCandidates <= MAX_CANDIDATES, `at most ${MAX_CANDIDATES} candidates`);
      assert(request.askedTokens.length <= MAX_CANDIDATES, `at most ${MAX_CANDIDATES} asked tokens`);
      if (request.allowedTokens) throw new DeviceError('candidates cannot be masked on this device');
      requests.push(request);
    }
  }
  return requests;
}

export interface Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  /**
   * One step: results for what the batch asks for, in its order. `onLayer` is told when the step's KV of a layer is in the blocks; a device
   * that cannot know before the end tells it then.
   */
  run(batch: readonly Segment[], onLayer?: (layer: number) => void): Promise<SampleResult[]>;
  /** Blocks' KV out of the device; each of `outs` has blockBytes bytes, and may lie in shared memory. */
  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void>;
  /** A step that is run afterwards reads them. */
  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[]): Promise<void>;
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
