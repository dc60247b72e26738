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

import type { WeightFormat } from './weight_format.ts';

/** How many rows a buffer has in a step: every token of the batch, or only the sampled ones. */
type RowKind = 'rows' | 'samples';

export interface BufferSpec {
  readonly rows: RowKind;
  /** Values in a row, f32. */
  readonly width: number;
}

/** A weight as a device holds it; `parts` are stacked along the outputs (q, k and v become one product). */
export interface WeightSpec {
  /** Outputs. A vector (norm, bias) has one output per value and `inner` 1. */
  readonly outputs: number;
  readonly inner: number;
  readonly parts: readonly { readonly tensor: string; readonly outputs: number }[];
}

export type Operation =
  /** out[rows, hidden] = table[token, :] */
  | { readonly kind: 'embed'; readonly table: string; readonly out: string }
  /** out[r, :] = weight * x[r, :] / sqrt(mean(x[r, :]²) + epsilon) */
  | {
      readonly kind: 'rms_norm';
      readonly x: string;
      readonly weight: string;
      readonly out: string;
      readonly epsilon: number;
    }
  /** out[r, outputs] (+)= x[r, inner] · weightᵀ (+ bias) */
  | {
      readonly kind: 'linear';
      readonly x: string;
      readonly weight: string;
      readonly bias?: string;
      readonly out: string;
      readonly accumulate: boolean;
    }
  /** Rotates q and k of qkv[rows, (heads + 2·kv_heads)·head_dim] in place (halves paired), stores k and v, rounded, at the row's slot. */
  | { readonly kind: 'rope_store'; readonly qkv: string; readonly layer: number }
  /**
   * out[rows, heads·head_dim] = causal softmax(q·Kᵀ·scale)·V over the sequence's block table; q is the head of qkv. With a
   * `window` a row sees that many tokens, its own included.
   */
  | {
      readonly kind: 'attention';
      readonly qkv: string;
      readonly out: string;
      readonly layer: number;
      readonly scale: number;
      readonly window?: number;
    }
  /** out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i] */
  | { readonly kind: 'silu_mul'; readonly gateUp: string; readonly out: string; readonly inner: number }
  /** out[samples, width] = x[sample_row, :] */
  | { readonly kind: 'gather_samples'; readonly x: string; readonly out: string }
  /** Per sample: the best logits, the log-sum-exp. Reads what the batch's sample requests ask for. */
  | { readonly kind: 'candidates'; readonly logits: string; readonly vocab: number };

export type KvDtype = 'f16' | 'f32';

export interface AttentionShape {
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** [max_positions, head_dim / 2] each, f32. */
  readonly ropeCos: Float32Array;
  readonly ropeSin: Float32Array;
}

export interface Program {
  readonly operations: readonly Operation[];
  readonly buffers: Readonly<Record<string, BufferSpec>>;
  readonly weights: Readonly<Record<string, WeightSpec>>;
  readonly attention?: AttentionShape;
}

/** Where weights come from, a slice at a time, so that a process never holds two copies. */
export interface WeightSource {
  /** Rows of the tensor in order, as f32; a slice is at most a few MiB. The array is only valid until the next one. */
  slices(tensor: string): AsyncIterable<{ readonly rowStart: number; readonly values: Float32Array }>;
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
  /** Present when the last row is to be sampled. */
  readonly sample?: SampleRequest;
}

export interface SampleRequest {
  /** Best logits wanted, at most MAX_CANDIDATES. */
  readonly numCandidates: number;
  /** Tokens whose logits are wanted besides (penalties, bias). */
  readonly askedTokens: readonly number[];
  readonly isFullRowWanted: boolean;
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

/** KV of one block on the wire and in host memory: [layer][plane k, v][token][kv_head][head_dim]. */
export function kvBlockBytes(
  shape: Pick<AttentionShape, 'layers' | 'kvHeads' | 'headDim'>,
  blockSize: number,
  dtype: KvDtype,
): number {
  return shape.layers * 2 * blockSize * shape.kvHeads * shape.headDim * (dtype === 'f16' ? 2 : 4);
}

export interface Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  /** One step: results for the segments that asked for a sample, in batch order. */
  run(batch: readonly Segment[]): Promise<SampleResult[]>;
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
