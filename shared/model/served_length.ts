/** How much context is served: what the model has, or less when asked for less. */
import { ModelError, type ModelFolder } from './model_folder.ts';

/** `maxModelLen` 0 means all of it. @throws ModelError when more is asked than the model has. */
export function servedLength(folder: ModelFolder, maxModelLen: number): number {
  const { maxPositions } = folder.config;
  if (maxModelLen > maxPositions) {
    throw new ModelError(`--max-model-len ${maxModelLen} exceeds the model's max_position_embeddings ${maxPositions}`);
  }
  return maxModelLen || maxPositions;
}
