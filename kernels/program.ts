/**
 * A program: what a model computes in a step, as a list of operations over named buffers. Architectures emit it at load; a device
 * decides how it runs. Dimension words as in device.ts.
 */

import type { RecurrentOperation } from './recurrent_operations.ts';
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
  /**
   * Number of rows from `firstRow` on that are transposed: the part's outputs are their columns, of which each has `transposedRows`
   * values. Absent: the outputs are rows.
   */
  readonly transposedRows?: number;
}

/**
 * Returns the storage format of a weight: f32 for vectors (norms, biases) and exact matrices, else the weight's own format, else
 * `common`.
 */
export function storageFormat({ inner, isExact, format }: WeightSpec, common: WeightFormat): WeightFormat {
  return inner === 1 || isExact === true ? 'f32' : (format ?? common);
}

/**
 * Heads in a row of qkv: `heads` of q, then `kvHeads` of k and as many of v, `headDim` values each. Where keys are computed there is no
 * k; a layer that reads the KV of another has neither, `kvHeads` 0.
 */
interface HeadShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/** Whether a layer stores its keys, or computes them from its values where they are read. */
type KeySource = 'stored' | 'computed';

interface GateShape {
  readonly gateUp: string;
  /** Buffer in which the ups lie, from value `firstUp` of a row on, 0 by default; absent: in gateUp, after the gates. */
  readonly ups?: string;
  readonly firstUp?: number;
  readonly out: string;
  readonly inner: number;
}

/**
 * Heads of latent attention. The KV of a token is one plane, [latent (`rank`) | rotated key (`rotary`)], which serves all heads; a query
 * has `heads` times as many values, in the same order.
 */
interface LatentHeads {
  readonly heads: number;
  readonly rank: number;
  readonly rotary: number;
}

/** One operation of a program; strings name buffers, weights and rope tables of the program. */
export type Operation =
  /** out[rows, hidden] (+)= table[token, :] (· scale) */
  | {
      readonly kind: 'embed';
      readonly table: string;
      readonly out: string;
      readonly scale?: number;
      readonly accumulate?: boolean;
    }
  /** out[r, :] (+)= weight * x[r, :] / sqrt(mean(x[r, :]²) + epsilon); with `scalar`, a weight of one value, out is multiplied by it then. */
  | {
      readonly kind: 'rms_norm';
      readonly x: string;
      readonly weight: string;
      readonly out: string;
      readonly epsilon: number;
      readonly accumulate?: boolean;
      readonly scalar?: string;
    }
  /**
   * The rms_norm of each head of q and of k, in place in qkv[rows, (heads + 2·kv_heads)·head_dim], or of all heads of q together and all
   * heads of k. The weight is q's, [head_dim] or [heads·head_dim], then k's. With `hasValueNorm` each head of v, too, without a weight.
   */
  | ({
      readonly kind: 'qk_norm';
      readonly qkv: string;
      readonly weight: string;
      readonly epsilon: number;
      readonly span: 'head' | 'all';
      readonly keys?: KeySource;
      readonly hasValueNorm?: boolean;
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
   * Rotates q and k of qkv[rows, (heads + 2·kv_heads)·head_dim] in place by the table `rope`: the pairs of each head that the table
   * has; other values stay. Then q is multiplied by the table's factor of the position, where it has one, and k and v are stored,
   * rounded, at the row's slot in the layer's planes. A layer of one plane stores k, which serves as v too; qkv has no v then. Where
   * keys are computed, v is stored alone, as it is.
   */
  | ({
      readonly kind: 'rope_store';
      readonly qkv: string;
      readonly layer: number;
      readonly rope: string;
      readonly keys?: KeySource;
    } & HeadShape)
  /**
   * out[rows, heads·head_dim] = causal softmax(q·Kᵀ·scale)·V over the sequence's block table; q is the first part of qkv. With a
   * `window` a row sees that many tokens, its own included; with a `cap` a scaled score s becomes cap · tanh(s / cap). The weight
   * `sinks`, [heads], has a score per head that joins the softmax of every row and has no value: all weights become smaller by it. K and
   * V are those of layer `kvLayer`, by default the own. With `keyNorm` and `keyRope` the layer stores V alone, and K is the product of that
   * weight and the stored V, rotated by that table.
   */
  | ({
      readonly kind: 'attention';
      readonly qkv: string;
      readonly out: string;
      readonly layer: number;
      readonly scale: number;
      readonly window?: number;
      readonly cap?: number;
      readonly sinks?: string;
      readonly kvLayer?: number;
      readonly keyNorm?: string;
      readonly keyRope?: string;
    } & HeadShape)
  /**
   * A product of its own for each head: out[r, h·outHead + o] = x[r, h·xHead ..] · weight[h·outputs + o, :]. The heads' outputs are
   * stacked in the weight, whose `expertOutputs` are those of one head.
   */
  | {
      readonly kind: 'head_linear';
      readonly x: string;
      readonly weight: string;
      readonly out: string;
      readonly heads: number;
      /** Values from one head to the next in a row of x, and of out. */
      readonly xHead: number;
      readonly outHead: number;
    }
  /**
   * Stores the row of latent attention: the rms_norm of the first `rank` values of latent[rows, rank + rotary], and the others rotated by
   * the table `rope`, rounded, at the row's slot in the layer's plane. Writes the last `rotary` values of each head of out[rows,
   * heads·(rank + rotary)]: the last values of each head of q[rows, heads·qHead], rotated. With `isInterleaved` neighbours are paired,
   * else halves; rotated values lie in halves. The values in `latent` are undefined afterwards.
   */
  | ({
      readonly kind: 'latent_store';
      readonly latent: string;
      readonly q: string;
      readonly out: string;
      readonly layer: number;
      readonly weight: string;
      readonly epsilon: number;
      readonly rope: string;
      readonly qHead: number;
      readonly isInterleaved: boolean;
    } & LatentHeads)
  /**
   * out[rows, heads·rank] = causal softmax(scale · query · token)·latent over the sequence's block table, where a query and what is stored
   * of a token have rank + rotary values, and the latent is the first `rank` of them.
   */
  | ({
      readonly kind: 'latent_attention';
      readonly query: string;
      readonly out: string;
      readonly layer: number;
      readonly scale: number;
    } & LatentHeads)
  /** out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i] */
  | ({ readonly kind: 'silu_mul' } & GateShape)
  /** out[r, i] = gelu(gate_up[r, i]) * gate_up[r, inner + i], GELU in its tanh form */
  | ({ readonly kind: 'gelu_mul' } & GateShape)
  /**
   * out[r, i] = (u + 1) · g · sigmoid(alpha · g), the SwiGLU of gpt-oss: g = gate_up[r, i], at most `limit`, and u = gate_up[r, inner +
   * i], between -limit and limit
   */
  | ({ readonly kind: 'clamped_swiglu'; readonly alpha: number; readonly limit: number } & GateShape)
  /** out[r, i] = gate_up[r, i] * gate_up[r, inner + i] */
  | ({ readonly kind: 'mul' } & GateShape)
  /**
   * x[r, i] = x[r, i] · sigmoid(gate[r, first + i]) for i < width, in place; with `isPerRow` one gate for the row, gate[r, first].
   */
  | {
      readonly kind: 'sigmoid_mul';
      readonly x: string;
      readonly width: number;
      readonly gate: string;
      readonly first: number;
      readonly isPerRow?: boolean;
    }
  | RecurrentOperation
  /**
   * Routing of a mixture: chooses the `perToken` best of logits[rows, experts], ties to the lower expert, weighted by their softmax
   * over all experts or, if `isNormalised`, over the chosen ones. routes[rows, 2·perToken]: weights, best first, then an expert slot
   * for each, u32. The expert slots of a step are numbered by expert, then by row, so that the rows of one expert lie together.
   * With `scoring` `sigmoid` the score of an expert is the sigmoid of its logit, and its weight is that score, divided by the sum of
   * the chosen ones (plus 1e-20) if `isNormalised`. Weights are multiplied by `scale`, and each by the value of its expert in
   * `expertScales`.
   */
  | {
      readonly kind: 'route';
      readonly logits: string;
      readonly routes: string;
      readonly experts: number;
      readonly perToken: number;
      readonly isNormalised: boolean;
      readonly scoring?: 'softmax' | 'sigmoid';
      /** Vector [experts] that is added to sigmoid scores where experts are chosen, not in their weights. */
      readonly bias?: string;
      /**
       * Groups of equally many consecutive experts, with sigmoid scores: the experts are chosen from the `groupsPerToken` groups whose
       * two best (biased) scores have the greatest sum, ties to the lower group.
       */
      readonly groups?: number;
      readonly groupsPerToken?: number;
      readonly scale?: number;
      /** Vector [experts]. */
      readonly expertScales?: string;
    }
  /** out[expert slot, :] = x[r, :] for every expert slot of row r. */
  | { readonly kind: 'permute'; readonly x: string; readonly routes: string; readonly out: string }
  /** out[slot, :] = x[slot, :] · weightᵀ (+ bias) of the expert of each expert slot; the experts' outputs are stacked. */
  | {
      readonly kind: 'expert_linear';
      readonly x: string;
      readonly weight: string;
      readonly bias?: string;
      readonly out: string;
      readonly experts: number;
    }
  /** out[r, :] (+)= sum of weight · x[expert slot, :] over the expert slots of row r, best first; it is added unless `accumulate` is false. */
  | {
      readonly kind: 'combine';
      readonly x: string;
      readonly routes: string;
      readonly out: string;
      readonly accumulate?: boolean;
    }
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

/** Returns the layer whose K and V an attention reads. */
export function kvLayerOf({ layer, kvLayer = layer }: Pick<OperationOf<'attention'>, 'layer' | 'kvLayer'>): number {
  return kvLayer;
}

/** Operation that combines the gates and ups in a row of a product into `inner` values. */
export type Gate = OperationOf<'silu_mul' | 'gelu_mul' | 'clamped_swiglu' | 'mul'>;

const gateKinds: ReadonlySet<string> = new Set(['silu_mul', 'gelu_mul', 'clamped_swiglu', 'mul']);

/** Whether the operation is a gate (`silu_mul`, `gelu_mul`, `clamped_swiglu` or `mul`). */
export function isGate(op: Operation | undefined): op is Gate {
  return op !== undefined && gateKinds.has(op.kind);
}

function gateInputs({ gateUp, ups }: Gate): readonly string[] {
  return ups === undefined ? [gateUp] : [gateUp, ups];
}

const inputs: { readonly [K in Operation['kind']]: (op: OperationOf<K>) => readonly string[] } = {
  embed: ({ out, accumulate }) => (accumulate ? [out] : []),
  rms_norm: ({ x, out, accumulate }) => (accumulate ? [x, out] : [x]),
  qk_norm: ({ qkv }) => [qkv],
  linear: ({ x, out, accumulate }) => (accumulate ? [x, out] : [x]),
  rope_store: ({ qkv }) => [qkv],
  attention: ({ qkv }) => [qkv],
  head_linear: ({ x }) => [x],
  latent_store: ({ latent, q, out }) => [latent, q, out],
  latent_attention: ({ query }) => [query],
  silu_mul: gateInputs,
  gelu_mul: gateInputs,
  clamped_swiglu: gateInputs,
  mul: gateInputs,
  sigmoid_mul: ({ x, gate }) => [x, gate],
  causal_conv: ({ x }) => [x],
  delta_rule: ({ qkv, gates }) => [qkv, gates],
  state_space: ({ cbx, steps }) => [cbx, steps],
  gated_norm: ({ x, gate }) => [x, gate],
  route: ({ logits }) => [logits],
  permute: ({ x, routes }) => [x, routes],
  expert_linear: ({ x }) => [x],
  combine: ({ x, routes, out, accumulate = true }) => (accumulate ? [x, routes, out] : [x, routes]),
  gather_samples: ({ x }) => [x],
  soft_cap: ({ x }) => [x],
  candidates: ({ logits }) => [logits],
  sample: ({ logits }) => [logits],
};

/** Returns the names of the buffers that the operation reads. */
export function inputsOf(op: Operation): readonly string[] {
  return (inputs[op.kind] as (op: Operation) => readonly string[])(op);
}

/**
 * KV that a layer stores per token: the number of values in each plane. Most layers store K and V, `kv_heads · head_dim` each; where K
 * follows from V there is one plane, and none in a layer that reads the KV of another.
 */
export interface KvLayer {
  readonly planes: readonly number[];
}

/** Recurrent state that a layer keeps per sequence: the number of f32 values in each plane; none in a layer without recurrence. */
export interface StateLayer {
  readonly planes: readonly number[];
}

/** Rotary position embedding: cosines and sines by position, [max_positions, dim / 2] f32 each. */
export interface RopeTable {
  /** Number of values of a head that the table rotates. */
  readonly dim: number;
  /** Value i of a head, i < dim / 2, is rotated with value i + pairDistance; dim / 2 by default, so that the first `dim` values rotate. */
  readonly pairDistance?: number;
  /** Factor of q by position, after rotation, [max_positions] f32; absent: 1. */
  readonly queryFactors?: Float32Array;
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
  /** Recurrent state of each layer, by layer index; absent in a program without recurrent layers. */
  readonly state?: readonly StateLayer[];
  /** Rope tables by the names that `rope_store` operations use. */
  readonly rope: Readonly<Record<string, RopeTable>>;
}
