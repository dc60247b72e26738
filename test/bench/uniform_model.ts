/** Models whose layers are all alike, or nearly: what is measured is a size, not a checkpoint. Plain ones are of the form that every engine knows. */
import type { DecoderTensors } from '../../shared/engine/architectures/program_parts.ts';
import type { DeltaShape, LayerShape, ModelShape } from '../../shared/model/model_shape.ts';

export interface UniformModel {
  readonly hidden: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly inner: number;
  readonly vocabSize: number;
  readonly maxPositions: number;
  readonly epsilon: number;
  readonly ropeTheta: number;
  /** `inner` is of each of them then. */
  readonly experts?: { readonly count: number; readonly perToken: number };
  /** Five layers with a window to one without, norms around branches and of q and k, as Gemma 3 has them. */
  readonly window?: number;
  /** Three layers that are gated delta nets to one with attention, which has output gates, and norms of q and k, as Qwen3.5 has them. */
  readonly delta?: DeltaShape;
}

/** Dimensions of a model, without the positions and angles that each run chooses. */
export type UniformSize = Omit<UniformModel, 'maxPositions' | 'epsilon' | 'ropeTheta'>;

/** Sizes that are measured, by name. */
export const shapes: Readonly<Record<string, UniformSize>> = {
  tiny: { hidden: 64, layers: 2, heads: 4, kvHeads: 2, headDim: 16, inner: 128, vocabSize: 256 },
  'tiny-hybrid': {
    hidden: 64,
    layers: 4,
    heads: 2,
    kvHeads: 1,
    headDim: 32,
    inner: 128,
    vocabSize: 256,
    delta: { keyHeads: 2, valueHeads: 4, keyDim: 16, valueDim: 16, taps: 4 },
  },
  '135m': { hidden: 576, layers: 30, heads: 9, kvHeads: 3, headDim: 64, inner: 1_536, vocabSize: 49_152 },
  '1b': { hidden: 2_048, layers: 16, heads: 32, kvHeads: 8, headDim: 64, inner: 8_192, vocabSize: 128_256 },
  // Qwen3-30B-A3B's proportions at half the width and a sixth of the depth.
  mixture: {
    hidden: 1_024,
    layers: 8,
    heads: 16,
    kvHeads: 2,
    headDim: 128,
    inner: 384,
    vocabSize: 151_936,
    experts: { count: 128, perToken: 8 },
  },
  // Gemma 3 1B's.
  windowed: {
    hidden: 1_152,
    layers: 26,
    heads: 4,
    kvHeads: 1,
    headDim: 256,
    inner: 6_912,
    vocabSize: 262_144,
    window: 512,
  },
  // Those of the 0.8B class of Qwen3.5, with fewer tokens in the vocabulary.
  hybrid: {
    hidden: 1_024,
    layers: 24,
    heads: 8,
    kvHeads: 2,
    headDim: 256,
    inner: 3_584,
    vocabSize: 32_768,
    delta: { keyHeads: 16, valueHeads: 16, keyDim: 128, valueDim: 128, taps: 4 },
  },
  '8b': { hidden: 4_096, layers: 32, heads: 32, kvHeads: 8, headDim: 128, inner: 14_336, vocabSize: 128_256 },
};

/** Names of the sizes whose layers all have attention: segments of the others need recurrent states. */
export const attentionShapeNames = Object.keys(shapes).filter((name) => shapes[name]?.delta === undefined);

/** Returns whether layer `index` is a gated delta net. */
export function isDeltaLayer({ delta }: Pick<UniformModel, 'delta'>, index: number): boolean {
  return delta !== undefined && (index + 1) % 4 !== 0;
}

export function configOf(size: UniformSize, maxPositions: number): UniformModel {
  return {
    ...size,
    epsilon: 1e-5,
    ropeTheta: 10_000,
    maxPositions,
  };
}

/** Tensor names of a mixture-of-experts layer. */
export const uniformTensors: DecoderTensors = {
  mixture: { module: 'mlp', router: 'gate', gate: 'gate_proj', up: 'up_proj', down: 'down_proj' },
};

export function shapeOfUniform(model: UniformModel): ModelShape {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, maxPositions, epsilon, ropeTheta } = model;
  const { experts, window = 0, delta } = model;
  const layer: Omit<LayerShape, 'window'> = {
    heads,
    kvHeads,
    headDim,
    rope: 'plain',
    inner,

    scoreScale: 1 / Math.sqrt(headDim),
    scoreCap: 0,
    qkNorm: window > 0 || delta ? 'head' : 'none',
    norms: window > 0 ? 'both' : 'before',
    activation: 'silu',
    hasQkvBias: false,
    hasOutputBias: false,
    hasMlpBias: false,
    experts: experts ? { ...experts, isNormalised: true } : null,
    ...(delta ? { hasOutputGate: true } : {}),
  };
  const layerAt = (i: number): LayerShape => ({
    ...layer,
    window: (i + 1) % 6 === 0 ? 0 : window,
    ...(delta && isDeltaLayer(model, i) ? { delta } : {}),
  });
  return {
    vocabSize,
    hidden,
    maxPositions,
    epsilon,
    isTied: false,
    hasNormOffset: false,
    embeddingScale: 1,
    branchScale: 1,
    logitScale: 1,
    logitCap: 0,
    layers: Array.from({ length: layers }, (_, i) => layerAt(i)),
    ropes: { plain: { theta: ropeTheta, dim: delta ? headDim / 4 : headDim } },
  };
}
