/** Every architecture that can be served. */
import type { Program } from '../../../kernels/program.ts';
import { ModelError, type ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { gemma2, gemma3 } from './gemma.ts';
import { granite } from './granite.ts';
import { llama } from './llama.ts';
import { mistral } from './mistral.ts';
import { mixtral } from './mixtral.ts';
import { olmo2 } from './olmo2.ts';
import { phi3 } from './phi3.ts';
import { qwen2 } from './qwen2.ts';
import { qwen3 } from './qwen3.ts';
import { qwen3Moe } from './qwen3_moe.ts';
import { smollm3 } from './smollm3.ts';

const architectures: readonly Architecture[] = [
  llama,
  mistral,
  mixtral,
  qwen2,
  qwen3,
  qwen3Moe,
  phi3,
  gemma2,
  gemma3,
  olmo2,
  granite,
  smollm3,
];

function architectureOf({ modelType, path }: ModelConfig): Architecture {
  const found = architectures.find(({ modelTypes }) => modelTypes.includes(modelType));
  if (found) return found;
  const known = architectures.flatMap(({ modelTypes }) => modelTypes).join(', ');
  throw new ModelError(
    `${path}: model_type ${JSON.stringify(modelType)} is not supported; this version serves ${known}`,
  );
}

/**
 * Returns the shape that a model's configuration describes. @throws ModelError for an architecture, or a feature of one, that this
 * version does not support.
 */
export function shapeOf({ config }: { readonly config: ModelConfig }): ModelShape {
  return architectureOf(config).shape(config);
}

/**
 * Returns the program of a model; `shape` comes from the same configuration, and `numPositions` is the longest context that will be
 * served.
 */
export function programOf(config: ModelConfig, shape: ModelShape, numPositions: number): Program {
  return architectureOf(config).program(shape, numPositions);
}
