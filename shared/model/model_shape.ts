/** Shape of a model, read from config.json by its architecture: all numbers that emitting a program needs. */
import { createHash } from 'node:crypto';

/** One layer; layers of a model may differ in any of it. */
export interface LayerShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Tokens that a row attends to, its own included; 0: all. */
  readonly window: number;
  /** Factor of the attention scores. */
  readonly scoreScale: number;
  /** A scaled score s is cap · tanh(s / cap); 0: it stays. */
  readonly scoreCap: number;
  /** Name of the layer's rotary table in `ropes` of the model's shape. */
  readonly rope: string;
  /** Norm applied to q and k before rotation: none, one per head, or one over all heads together. */
  readonly qkNorm: 'none' | 'head' | 'all';
  /** Norms around each branch (attention, MLP): of its input, of its output, or both. */
  readonly norms: 'before' | 'after' | 'both';
  /** Hidden width of the gated MLP, or of each expert's. */
  readonly inner: number;
  /** Experts of a mixture; null for one MLP that all tokens pass. */
  readonly experts: Experts | null;
  readonly activation: Activation;
  /** Bounds of a clamped SwiGLU, which replaces the activation; absent in other gates. */
  readonly clamp?: GateClamp;
  /** Whether each head has a sink: a score that joins the softmax of every row. Absent: none has. */
  readonly hasSinks?: boolean;
  readonly hasQkvBias: boolean;
  readonly hasOutputBias: boolean;
  readonly hasMlpBias: boolean;
  /** How the layer comes by K and V, where it differs from a product for each. */
  readonly kv?: KvSource;
  /** A mixture that reads the same rows as the MLP, and is added to it. */
  readonly parallelMixture?: { readonly inner: number; readonly experts: Experts };
  /** Whether the residual stream is multiplied by a scalar of the checkpoint at the end of the layer. */
  readonly hasScalar?: boolean;
  /** Latent attention instead of q, k and v; `headDim` is then that of the rotated key, and biases are those of its first products. */
  readonly latent?: LatentShape;
  /** Whether the attended values of each head are multiplied by the sigmoid of gates, which the product of q has after each head. */
  readonly hasOutputGate?: boolean;
  /** A recurrence in place of attention: at most one of these three, and none in a layer with attention. */
  readonly delta?: DeltaShape;
  readonly convolution?: ConvolutionShape;
  readonly stateSpace?: StateSpaceShape;
}

/** K and V of a layer. */
interface KvSource {
  /** Whether each head of v is normalised, without a weight. */
  readonly hasValueNorm: boolean;
  /** Whether k and v come from one product: v is its norm without a weight, k that norm times a weight, then rotated. */
  readonly isOneProduct: boolean;
  /** Index of an earlier layer whose K and V this layer reads, having none of its own. */
  readonly fromLayer?: number;
}

/** Sizes of latent attention, by the names of DeepSeek-V2's paper (section 2.1). */
export interface LatentShape {
  /** Values of a token's latent (`kv_lora_rank`), of which all heads' keys and values are products. */
  readonly rank: number;
  /** Values of a query head that are not rotated (`qk_nope_head_dim`), and those that are (`qk_rope_head_dim`). */
  readonly plainDim: number;
  readonly rotaryDim: number;
  /** Values of a head's output (`v_head_dim`). */
  readonly valueDim: number;
  /** Values of the queries' own latent (`q_lora_rank`); null: queries are one product. */
  readonly queryRank: number | null;
  /** Rotated values are paired with their neighbours, not with those of the other half. */
  readonly isInterleaved: boolean;
  /**
   * Whether the checkpoint has the parts of keys, transposed, and the parts of values in two tensors, [heads · rank, plainDim] and
   * [heads · valueDim, rank], in place of one.
   */
  readonly isAbsorbed?: boolean;
}

/** A gated delta net: each value head has a state [keyDim][valueDim] per sequence. */
export interface DeltaShape {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  /** Rows that the causal convolution of q, k and v spans. */
  readonly taps: number;
  /** Which tensors are fused by key heads: those of q, k, v and z, and of b and a, or only the latter; absent: none. */
  readonly fused?: 'all' | 'gates';
  /** Whether value head h belongs to key head h modulo `keyHeads`; absent: consecutive value heads have one key head. */
  readonly isTiled?: boolean;
}

/** A short causal convolution between two gates, each with a value for every value of the residual stream. */
export interface ConvolutionShape {
  /** Rows that the convolution spans. */
  readonly taps: number;
  /** Whether the convolution and the products before and after it have biases. */
  readonly hasBias: boolean;
}

/** A state space of Mamba2: each head has a state [stateDim][headDim] per sequence. */
export interface StateSpaceShape {
  /** Heads, and groups of as many consecutive heads, which share the vectors that write to their states and read from them. */
  readonly heads: number;
  readonly groups: number;
  readonly headDim: number;
  readonly stateDim: number;
  /** Rows that the causal convolution before the recurrence spans. */
  readonly taps: number;
  /** Whether the convolution has a bias. */
  readonly hasConvolutionBias: boolean;
  /** Whether the products before and after the recurrence have biases. */
  readonly hasBias: boolean;
  /** Bounds of the time steps, where they have any. */
  readonly steps?: { readonly least: number; readonly most?: number };
}

/** Experts of a mixture: `count` in the layer, of which each token uses `perToken`. */
export interface Experts {
  readonly count: number;
  readonly perToken: number;
  /** Weights of a token's experts sum to 1. */
  readonly isNormalised: boolean;
  /** How experts are chosen by sigmoid scores; absent: by the softmax of their logits. */
  readonly sigmoid?: SigmoidRouting;
  /** A dense MLP that all tokens pass, and whose output is added to that of the experts. */
  readonly shared?: {
    readonly inner: number;
    /** Whether its output is multiplied by the sigmoid of a gate, one per token. */
    readonly isGated?: boolean;
  };
  /** Whether the router and every expert have biases; absent: none has. */
  readonly hasBias?: boolean;
}

/** Choice of experts by the sigmoid of their logits. */
interface SigmoidRouting {
  /** Whether the checkpoint has a correction that is added to the scores for the choice, not for the weights. */
  readonly hasBias: boolean;
  /** Experts lie in `groups` groups; they are chosen from the `groupsPerToken` groups whose two best scores have the greatest sum. */
  readonly groups: number;
  readonly groupsPerToken: number;
  /** Factor of the experts' weights. */
  readonly scale: number;
}

/** Numbers of a clamped SwiGLU, (up + 1) · gate · sigmoid(alpha · gate): gate is at most `limit`, up within ±limit. */
interface GateClamp {
  readonly alpha: number;
  readonly limit: number;
}

/** Activation of the MLP's gate: x · sigmoid(x), or GELU in its tanh form. */
export type Activation = 'silu' | 'gelu_tanh';

/** Rotary table with angles position · theta^(-2i / dim), modified by `scaling` where present. */
export interface RopeShape {
  /** 0: no rotation at all. */
  readonly theta: number;
  /** Values of a head that are rotated, the first ones. */
  readonly dim: number;
  /** Values over which the angles are spread instead of `dim`: position · theta^(-2i / span); value i is rotated with value i + span / 2. */
  readonly span?: number;
  readonly scaling?: RopeScaling;
  /** After rotation q is multiplied by 1 + beta · ln(1 + floor(position / originalPositions)). */
  readonly queryScale?: { readonly beta: number; readonly originalPositions: number };
}

/** Scaling of rotary angles for contexts longer than a model was first trained for. Wavelengths are in positions. */
export type RopeScaling =
  | { readonly kind: 'linear'; readonly factor: number }
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      readonly lowFactor: number;
      readonly highFactor: number;
      readonly originalPositions: number;
    }
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      readonly originalPositions: number;
      /** Factor of cosines and sines. */
      readonly attentionFactor: number;
      /** Rotations within the original context above which a frequency stays (betaFast), and below which it is fully scaled (betaSlow). */
      readonly betaFast: number;
      readonly betaSlow: number;
      readonly isTruncated: boolean;
    }
  /** The base grows with the context that is served, from `originalPositions` on. */
  | { readonly kind: 'dynamic'; readonly factor: number; readonly originalPositions: number }
  /** Frequencies are divided by `short`, or by `long` when more than `originalPositions` are served. */
  | {
      readonly kind: 'longrope';
      readonly short: readonly number[];
      readonly long: readonly number[];
      readonly originalPositions: number;
      readonly attentionFactor: number;
    }
  /** The longrope scaling after its divisors were chosen for the served context length. */
  | { readonly kind: 'divided'; readonly divisors: readonly number[]; readonly attentionFactor: number };

/** Inputs of single layers: rows of a table by token, which a product of the token's embedding is added to. */
interface LayerInputs {
  /** Values of an input of one layer. */
  readonly width: number;
  /** Rows of the table. */
  readonly vocabSize: number;
}

/** Numbers that describe a whole model; those of a single layer are in LayerShape. */
export interface ModelShape {
  readonly vocabSize: number;
  readonly hidden: number;
  readonly maxPositions: number;
  /** Epsilon of every norm. */
  readonly epsilon: number;
  /** Whether the output head shares the weights of the token embedding. */
  readonly isTied: boolean;
  /** Whether norm weights are stored minus 1, so that the model adds 1 to them. */
  readonly hasNormOffset: boolean;
  /** Factors of the embeddings, of each branch's output before it is added to the residual stream, and of the logits. */
  readonly embeddingScale: number;
  readonly branchScale: number;
  readonly logitScale: number;
  /** A logit l is cap · tanh(l / cap); 0: it stays. */
  readonly logitCap: number;
  readonly layers: readonly LayerShape[];
  /** Inputs that every layer has besides the residual stream: vectors of `width` values for each token and layer. */
  readonly layerInputs?: LayerInputs;
  readonly ropes: Readonly<Record<string, RopeShape>>;
}

/** SHA-256 of the shape, hex: equal for equal models, whatever else their configuration files hold. */
export function shapeDigest(shape: ModelShape): string {
  return createHash('sha256').update(JSON.stringify(shape)).digest('hex');
}
