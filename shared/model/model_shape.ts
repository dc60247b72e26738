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
  readonly hasQkvBias: boolean;
  readonly hasOutputBias: boolean;
  readonly hasMlpBias: boolean;
}

/** Experts of a mixture: `count` in the layer, of which each token uses `perToken`. */
export interface Experts {
  readonly count: number;
  readonly perToken: number;
  /** Weights of a token's experts sum to 1. */
  readonly isNormalised: boolean;
}

/** Activation of the MLP's gate: x · sigmoid(x), or GELU in its tanh form. */
export type Activation = 'silu' | 'gelu_tanh';

/** Rotary table with angles position · theta^(-2i / dim), modified by `scaling` where present. */
export interface RopeShape {
  /** 0: no rotation at all. */
  readonly theta: number;
  /** Values of a head that are rotated, the first ones. */
  readonly dim: number;
  readonly scaling?: RopeScaling;
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
  readonly ropes: Readonly<Record<string, RopeShape>>;
}

/** SHA-256 of the shape, hex: equal for equal models, whatever else their configuration files hold. */
export function shapeDigest(shape: ModelShape): string {
  return createHash('sha256').update(JSON.stringify(shape)).digest('hex');
}
