/** How much context is served: what the model has, or less when asked for less. */
import { ModelError } from './model_folder.ts';
import type { ModelShape } from './model_shape.ts';

/** Kinds of rotary scaling that make a context longer than its configuration names. */
const LENGTHENING: readonly string[] = ['dynamic', 'linear', 'yarn'];

/** `maxModelLen` 0 means all of it. @throws ModelError when more is asked than the model has. */
export function servedLength({ maxPositions, ropes }: ModelShape, maxModelLen: number): number {
  // Dynamic scaling is for contexts beyond what a model was trained for, when somebody asks for them.
  const factor = Math.max(
    1,
    ...Object.values(ropes).map(({ scaling }) => (scaling?.kind === 'dynamic' ? scaling.factor : 1)),
  );
  const longest = Math.floor(maxPositions * factor);
  if (maxModelLen > longest) {
    const isScaled = Object.values(ropes).some(({ scaling }) => scaling && LENGTHENING.includes(scaling.kind));
    throw new ModelError(
      `--max-model-len ${maxModelLen} exceeds the model's ${isScaled ? 'scaled ' : ''}max_position_embeddings ${longest}`,
    );
  }
  return maxModelLen || maxPositions;
}
