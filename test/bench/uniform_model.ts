/** Models whose layers are all alike, or nearly: what is measured is a size, not a checkpoint. Plain ones are of the form that every engine knows. */
import type { DecoderTensors } from '../../shared/engine/architectures/decoder.ts';
import type { ModelShape } from '../../shared/model/model_shape.ts';

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
}

/** Dimensions of a model, without the positions and angles that each run chooses. */
export type UniformSize = Omit<UniformModel, 'maxPositions' | 'epsilon' | 'ropeTheta'>;

/** Sizes that are measured, by name. */
export const shapes: Readonly<Record<string, UniformSize>> = {
  tiny: { hidden: 64, layers: 2, heads: 4, kvHeads: 2, headDim: 16, inner: 128, vocabSize: 256 },
  '135m': { hidden: 576, layers: 30, heads: 9, kvHeads: 3, headDim: 64, inner: 1_536, vocabSize: 49_152 },
  '1b': { hidden: 2_048, layers: 16, heads: 32, kvHeads: 8, headDim: 64, inner: 8_192, vocabSize: 128_256 },
  // Qwen3-30B-A3B's proportions at half the width and a sixth of the depth.
  mixture: {
    ...{ hidden: 1_024, layers: 8, heads: 16, kvHeads: 2, headDim: 128, inner: 384, vocabSize: 151_936 },
    experts: { count: 128, perToken: 8 },
  },
  // Gemma 3 1B's.
  windowed: {
    ...{ hidden: 1_152, layers: 26, heads: 4, kvHeads: 1, headDim: 256, inner: 6_912, vocabSize: 262_144 },
    window: 512,
  },
  '8b': { hidden: 4_096, layers: 32, heads: 32, kvHeads: 8, headDim: 128, inner: 14_336, vocabSize: 128_256 },
};

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
  const { experts, window = 0 } = model;
  const layer = {
    ...{ heads, kvHeads, headDim, rope: 'plain', inner },
    ...({
      scoreScale: 1 / Math.sqrt(headDim),
      scoreCap: 0,
      qkNorm: window > 0 ? 'head' : 'none',
      norms: window > 0 ? 'both' : 'before',
      activation: 'silu',
    } as const),
    ...{ hasQkvBias: false, hasOutputBias: false, hasMlpBias: false },
    experts: experts ? { ...experts, isNormalised: true } : null,
  };
  return {
    ...{ vocabSize, hidden, maxPositions, epsilon, isTied: false },
    ...{ hasNormOffset: false, embeddingScale: 1, branchScale: 1, logitScale: 1, logitCap: 0 },
    layers: Array.from({ length: layers }, (_, i) => ({ ...layer, window: (i + 1) % 6 === 0 ? 0 : window })),
    ropes: { plain: { theta: ropeTheta, dim: headDim } },
  };
}
