/** A model in numbers, read from config.json by its architecture: all that emitting a program needs. */
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
  /** The rotary table, by its name in the model's shape. */
  readonly rope: string;
  /** Norms of q and k before they are rotated: of each head, or of all together. */
  readonly qkNorm: 'none' | 'head' | 'all';
  /** Norms of what goes into a branch, of what comes out of it, or both. */
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

/** Each token goes to some of them. */
export interface Experts {
  readonly count: number;
  readonly perToken: number;
  /** Weights of a token's experts sum to 1. */
  readonly isNormalised: boolean;
}

/** Activation of the MLP's gate: x · sigmoid(x), or GELU in its tanh form. */
export type Activation = 'silu' | 'gelu_tanh';

/** Angles position · theta^(-2i / dim), scaled where it says so. */
export interface RopeShape {
  /** 0: no rotation at all. */
  readonly theta: number;
  /** Values of a head that are rotated, the first ones. */
  readonly dim: number;
  readonly scaling?: RopeScaling;
}

/** To longer contexts than a model was first trained for. Wavelengths are in positions. */
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
      /** Turns within the original context. */
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
  /** The longrope scaling once the context length is known. */
  | { readonly kind: 'divided'; readonly divisors: readonly number[]; readonly attentionFactor: number };

/** Numbers that describe a whole model; those of a single layer are in LayerShape. */
export interface ModelShape {
  readonly vocabSize: number;
  readonly hidden: number;
  readonly maxPositions: number;
  /** Epsilon of every norm. */
  readonly epsilon: number;
  /** The head is the embedding. */
  readonly isTied: boolean;
  /** Norms are stored less one. */
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
