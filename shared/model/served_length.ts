/** Context length that is served: the model's, or --max-model-len. */
import { ModelError } from './model_folder.ts';
import type { ModelShape } from './model_shape.ts';

/** Kinds of rotary scaling that make a context longer than its configuration names. */
const LENGTHENING: readonly string[] = ['dynamic', 'linear', 'yarn'];

/**
 * Returns the context length in tokens; `maxModelLen` 0 means the model's own. @throws ModelError when the model has less than
 * requested.
 */
export function servedLength({ maxPositions, ropes }: ModelShape, maxModelLen: number): number {
  // Dynamic scaling extends the context beyond the trained length only on request, so it raises the limit but not the default.
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
