/** Models whose layers are all alike, of the form that every engine knows: what is measured is a size, not a checkpoint. */
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
}

export function shapeOfUniform(model: UniformModel): ModelShape {
  const { hidden, layers, heads, kvHeads, headDim, inner, vocabSize, maxPositions, epsilon, ropeTheta } = model;
  const layer = {
    ...{ heads, kvHeads, headDim, window: 0, rope: 'plain', inner, experts: null },
    ...({
      scoreScale: 1 / Math.sqrt(headDim),
      scoreCap: 0,
      qkNorm: 'none',
      norms: 'before',
      activation: 'silu',
    } as const),
    ...{ hasQkvBias: false, hasOutputBias: false, hasMlpBias: false },
  };
  return {
    ...{ vocabSize, hidden, maxPositions, epsilon, isTied: false },
    ...{ hasNormOffset: false, embeddingScale: 1, branchScale: 1, logitScale: 1, logitCap: 0 },
    layers: Array.from({ length: layers }, () => layer),
    ropes: { plain: { theta: ropeTheta, dim: headDim } },
  };
}
