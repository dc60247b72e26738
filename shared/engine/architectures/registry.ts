/** Every architecture that can be served. */
import type { Program } from '../../../kernels/program.ts';
import { ModelError, type ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { llama } from './llama.ts';
import { qwen2 } from './qwen2.ts';

const architectures: readonly Architecture[] = [llama, qwen2];

function architectureOf({ modelType, path }: ModelConfig): Architecture {
  const found = architectures.find(({ modelTypes }) => modelTypes.includes(modelType));
  if (found) return found;
  const known = architectures.flatMap(({ modelTypes }) => modelTypes).join(', ');
  throw new ModelError(
    `${path}: model_type ${JSON.stringify(modelType)} is not supported; this version serves ${known}`,
  );
}

/** @throws ModelError for an architecture, or a part of one, that this version does not have. */
export function shapeOf({ config }: { readonly config: ModelConfig }): ModelShape {
  return architectureOf(config).shape(config);
}

/** `shape` is that of the same configuration; `numPositions` the longest context that will be served. */
export function programOf(config: ModelConfig, shape: ModelShape, numPositions: number): Program {
  return architectureOf(config).program(shape, numPositions);
}
