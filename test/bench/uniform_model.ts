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

/** Of a mixture's tensors. */
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
