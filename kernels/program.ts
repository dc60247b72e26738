/**
 * A program: what a model computes in a step, as a list of operations over named buffers. Architectures emit it at load; a device
 * decides how it runs. Dimension words as in device.ts.
 */

import type { WeightFormat } from './weights/weight_format.ts';

/** Type of the stored KV values. */
export type KvDtype = 'f16' | 'f32';

/**
 * How many rows a buffer has in a step: every token of the batch; only the sampled ones; or every token of a step in which hidden
 * states are wanted, and none in other steps.
 */
export type RowKind = 'rows' | 'samples' | 'hidden';

/** Shape of a named buffer of a program. */
export interface BufferSpec {
  readonly rows: RowKind;
  /** Rows of this buffer for each row of the step, 1 by default; a mixture's buffers have one per chosen expert. */
  readonly perRow?: number;
  /** Values in a row, f32. */
  readonly width: number;
}

/** A weight of a program. The tensors in `parts` are stacked along the outputs (q, k and v become one product). */
export interface WeightSpec {
  /** Outputs. A vector (norm, bias) has one output per value and `inner` 1. */
  readonly outputs: number;
  readonly inner: number;
  /** Outputs of one expert of a mixture; a device that splits the weight keeps them together. */
  readonly expertOutputs?: number;
  /** Whether the matrix is stored in f32 whatever the format of the others, as a mixture's router is. */
  readonly isExact?: boolean;
  /** Storage format of this matrix; the load options' `weightFormat` by default. */
  readonly format?: WeightFormat;
  /** Value added to each element of a vector, 0 by default; 1 for norms that are stored as weight - 1. */
  readonly offset?: number;
  readonly parts: readonly TensorRows[];
}

/** Rows [firstRow, firstRow + outputs) of a tensor of the checkpoint. */
export interface TensorRows {
  readonly tensor: string;
  readonly outputs: number;
  /** Index of the first row; 0 by default. */
  readonly firstRow?: number;
}

/**
 * Returns the storage format of a weight: f32 for vectors (norms, biases) and exact matrices, else the weight's own format, else
 * `common`.
 */
export function storageFormat({ inner, isExact, format }: WeightSpec, common: WeightFormat): WeightFormat {
  return inner === 1 || isExact === true ? 'f32' : (format ?? common);
}

/** Heads in a row of qkv: `heads` of q, then `kvHeads` of k and as many of v, `headDim` values each. */
interface HeadShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

interface GateShape {
  readonly gateUp: string;
  readonly out: string;
  readonly inner: number;
}

/** One operation of a program; strings name buffers, weights and rope tables of the program. */
export type Operation =
  /** out[rows, hidden] = table[token, :] (· scale) */
  | { readonly kind: 'embed'; readonly table: string; readonly out: string; readonly scale?: number }
  /** out[r, :] (+)= weight * x[r, :] / sqrt(mean(x[r, :]²) + epsilon) */
  | {
      readonly kind: 'rms_norm';
      readonly x: string;
      readonly weight: string;
      readonly out: string;
      readonly epsilon: number;
      readonly accumulate?: boolean;
    }
  /**
   * The rms_norm of each head of q and of k, in place in qkv[rows, (heads + 2·kv_heads)·head_dim], or of all heads of q together and all
   * heads of k. The weight is q's, [head_dim] or [heads·head_dim], then k's.
   */
  | ({
      readonly kind: 'qk_norm';
      readonly qkv: string;
      readonly weight: string;
      readonly epsilon: number;
      readonly span: 'head' | 'all';
    } & HeadShape)
  /** out[r, outputs] (+)= (x[r, inner] · weightᵀ (+ bias)) (· scale) */
  | {
      readonly kind: 'linear';
      readonly x: string;
      readonly weight: string;
      readonly bias?: string;
      readonly out: string;
      readonly accumulate: boolean;
      readonly scale?: number;
    }
  /**
   * Rotates q and k of qkv[rows, (heads + 2·kv_heads)·head_dim] in place by the table `rope`: the first `dim` values of each head,
   * halves paired; the values after them stay. Then stores k and v, rounded, at the row's slot in the layer's planes. A layer of one
   * plane stores k, which serves as v too; qkv has no v then.
   */
  | ({ readonly kind: 'rope_store'; readonly qkv: string; readonly layer: number; readonly rope: string } & HeadShape)
  /**
   * out[rows, heads·head_dim] = causal softmax(q·Kᵀ·scale)·V over the sequence's block table; q is the first part of qkv. With a
   * `window` a row sees that many tokens, its own included; with a `cap` a scaled score s becomes cap · tanh(s / cap).
   */
  | ({
      readonly kind: 'attention';
      readonly qkv: string;
      readonly out: string;
      readonly layer: number;
      readonly scale: number;
      readonly window?: number;
      readonly cap?: number;
    } & HeadShape)
  /** out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i] */
  | ({ readonly kind: 'silu_mul' } & GateShape)
  /** out[r, i] = gelu(gate_up[r, i]) * gate_up[r, inner + i], GELU in its tanh form */
  | ({ readonly kind: 'gelu_mul' } & GateShape)
  /**
   * Routing of a mixture: chooses the `perToken` best of logits[rows, experts], ties to the lower expert, weighted by their softmax
   * over all experts or, if `isNormalised`, over the chosen ones. routes[rows, 2·perToken]: weights, best first, then an expert slot
   * for each, u32. The expert slots of a step are numbered by expert, then by row, so that the rows of one expert lie together.
   */
  | {
      readonly kind: 'route';
      readonly logits: string;
      readonly routes: string;
      readonly experts: number;
      readonly perToken: number;
      readonly isNormalised: boolean;
    }
  /** out[expert slot, :] = x[r, :] for every expert slot of row r. */
  | { readonly kind: 'permute'; readonly x: string; readonly routes: string; readonly out: string }
  /** out[slot, :] = x[slot, :] · weightᵀ of the expert of each expert slot; the experts' outputs are stacked. */
  | {
      readonly kind: 'expert_linear';
      readonly x: string;
      readonly weight: string;
      readonly out: string;
      readonly experts: number;
    }
  /** out[r, :] += sum of weight · x[expert slot, :] over the expert slots of row r, best first. */
  | { readonly kind: 'combine'; readonly x: string; readonly routes: string; readonly out: string }
  /** out[samples, width] = x[sample_row, :] */
  | { readonly kind: 'gather_samples'; readonly x: string; readonly out: string }
  /** x[r, i] = cap · tanh(x[r, i] / cap) */
  | { readonly kind: 'soft_cap'; readonly x: string; readonly cap: number }
  /** For each sample that wants candidates: the best logits and the log-sum-exp. */
  | { readonly kind: 'candidates'; readonly logits: string; readonly vocab: number }
  /** For each sample with sampling parameters: a sampled token. */
  | { readonly kind: 'sample'; readonly logits: string; readonly vocab: number };

/** The operation type of kind `K`. */
export type OperationOf<K extends Operation['kind']> = Extract<Operation, { readonly kind: K }>;

/** Operation that combines the gates and ups in a row of a product into `inner` values. */
export type Gate = OperationOf<'silu_mul' | 'gelu_mul'>;

/** Whether the operation is a gate (`silu_mul` or `gelu_mul`). */
export function isGate(op: Operation | undefined): op is Gate {
  return op?.kind === 'silu_mul' || op?.kind === 'gelu_mul';
}

const inputs: { readonly [K in Operation['kind']]: (op: OperationOf<K>) => readonly string[] } = {
  embed: () => [],
  rms_norm: ({ x, out, accumulate }) => (accumulate ? [x, out] : [x]),
  qk_norm: ({ qkv }) => [qkv],
  linear: ({ x, out, accumulate }) => (accumulate ? [x, out] : [x]),
  rope_store: ({ qkv }) => [qkv],
  attention: ({ qkv }) => [qkv],
  silu_mul: ({ gateUp }) => [gateUp],
  gelu_mul: ({ gateUp }) => [gateUp],
  route: ({ logits }) => [logits],
  permute: ({ x, routes }) => [x, routes],
  expert_linear: ({ x }) => [x],
  combine: ({ x, routes, out }) => [x, routes, out],
  gather_samples: ({ x }) => [x],
  soft_cap: ({ x }) => [x],
  candidates: ({ logits }) => [logits],
  sample: ({ logits }) => [logits],
};

/** Returns the names of the buffers that the operation reads. */
export function inputsOf(op: Operation): readonly string[] {
  return (inputs[op.kind] as (op: Operation) => readonly string[])(op);
}

/** Returns the operation of a program that reads logits, or undefined when the program neither samples nor lists candidates. */
export function samplingOf({
  operations,
}: Pick<Program, 'operations'>): OperationOf<'candidates' | 'sample'> | undefined {
  return operations.find((op) => op.kind === 'candidates' || op.kind === 'sample');
}

/**
 * Returns the buffer of hidden states, which `Segment.hidden` receives: the program's only one of kind `hidden`; undefined when it has
 * none.
 */
export function hiddenOf({
  buffers,
}: Pick<Program, 'buffers'>): { readonly name: string; readonly width: number } | undefined {
  const [found] = Object.entries(buffers).filter(([, { rows }]) => rows === 'hidden');
  return found && { name: found[0], width: found[1].width };
}

/**
 * KV that a layer stores per token: the number of values in each plane. Most layers store K and V, `kv_heads · head_dim` each; where K
 * = V there is one plane.
 */
export interface KvLayer {
  readonly planes: readonly number[];
}

/** Rotary position embedding: cosines and sines by position, [max_positions, dim / 2] f32 each. */
export interface RopeTable {
  /** Number of values of a head that the table rotates. */
  readonly dim: number;
  readonly cos: Float32Array;
  readonly sin: Float32Array;
}

/** Everything a device needs to run a model's step, apart from the bytes of its weights. */
export interface Program {
  readonly operations: readonly Operation[];
  readonly buffers: Readonly<Record<string, BufferSpec>>;
  readonly weights: Readonly<Record<string, WeightSpec>>;
  /** KV planes of each layer, by layer index; empty for a program without attention. */
  readonly kv: readonly KvLayer[];
  /** Rope tables by the names that `rope_store` operations use. */
  readonly rope: Readonly<Record<string, RopeTable>>;
}

/** Returns the most experts, and the most experts per token, that any mixture of the program has; both are 0 when the program has none. */
export function widestMixture({ operations }: Pick<Program, 'operations'>): {
  readonly experts: number;
  readonly perToken: number;
} {
  const routes = operations.filter((op) => op.kind === 'route');
  return {
    experts: Math.max(0, ...routes.map(({ experts }) => experts)),
    perToken: Math.max(0, ...routes.map(({ perToken }) => perToken)),
  };
}
