/** What a model is, in numbers: read from its config.json by its architecture, and all that emitting a program needs. */
import { createHash } from 'node:crypto';

/** One layer; layers of a model may differ in any of it. */
export interface LayerShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Tokens that a row attends to, its own included; 0: all. */
  readonly window: number;
  /** The rotary table, by its name in the model's shape. */
  readonly rope: string;
  /** Of the gated MLP. */
  readonly inner: number;
  readonly activation: Activation;
  readonly hasQkvBias: boolean;
  readonly hasOutputBias: boolean;
  readonly hasMlpBias: boolean;
}

/** Of the gate: x · sigmoid(x), or GELU in its tanh form. */
export type Activation = 'silu' | 'gelu_tanh';

/** Angles position · theta^(-2i / dim). */
export interface RopeShape {
  readonly theta: number;
  readonly dim: number;
}

export interface ModelShape {
  readonly vocabSize: number;
  readonly hidden: number;
  readonly maxPositions: number;
  /** Of every norm. */
  readonly epsilon: number;
  /** The head is the embedding. */
  readonly isTied: boolean;
  readonly layers: readonly LayerShape[];
  readonly ropes: Readonly<Record<string, RopeShape>>;
}

/** SHA-256 of the shape, hex: equal for equal models, whatever else their configuration files hold. */
export function shapeDigest(shape: ModelShape): string {
  return createHash('sha256').update(JSON.stringify(shape)).digest('hex');
}
