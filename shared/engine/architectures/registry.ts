/** Every architecture that can be served. */
import type { Program } from '../../../kernels/program.ts';
import { ModelError, type ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { deepseekV3 } from './deepseek_v3.ts';
import { gemma2, gemma3 } from './gemma.ts';
import { glm4Moe } from './glm4_moe.ts';
import { gemma4 } from './gemma4.ts';
import { gptOss } from './gpt_oss.ts';
import { granite } from './granite.ts';
import { graniteHybrid } from './granite_hybrid.ts';
import { lfm2 } from './lfm2.ts';
import { llama } from './llama.ts';
import { ministral3 } from './ministral3.ts';
import { minimaxM2 } from './minimax_m2.ts';
import { mistral } from './mistral.ts';
import { mixtral } from './mixtral.ts';
import { olmo2 } from './olmo2.ts';
import { olmo3 } from './olmo3.ts';
import { phi3 } from './phi3.ts';
import { qwen2 } from './qwen2.ts';
import { qwen3 } from './qwen3.ts';
import { qwen3Moe } from './qwen3_moe.ts';
import { qwen35, qwen35Moe, qwen3Next } from './qwen3_next.ts';
import { smollm3 } from './smollm3.ts';

const architectures: readonly Architecture[] = [
  llama,
  mistral,
  ministral3,
  mixtral,
  qwen2,
  qwen3,
  qwen3Moe,
  qwen35,
  qwen35Moe,
  qwen3Next,
  phi3,
  gemma2,
  gemma3,
  gemma4,
  olmo2,
  olmo3,
  granite,
  graniteHybrid,
  smollm3,
  glm4Moe,
  minimaxM2,
  deepseekV3,
  gptOss,
  lfm2,
];

/** Model types whose names are near to those that are served, and what keeps them from it. */
const unsupported: Readonly<Record<string, string>> = {
  deepseek_v32:
    'its sparse attention chooses tokens by an indexer; deepseek_v3, which attends to all tokens, is served',
  glm_moe_dsa:
    'its sparse attention chooses tokens by an indexer; glm4_moe and glm4_moe_lite, which attend to all tokens, are served',
  lfm2_moe: 'its layers have mixtures of experts; lfm2, whose layers have one MLP each, is served',
  nemotron_h:
    'its layers are a recurrence, attention or an MLP alone; granitemoehybrid, whose recurrences are Mamba2 as well, is served',
};

function architectureOf({ modelType, path }: ModelConfig): Architecture {
  const found = architectures.find(({ modelTypes }) => modelTypes.includes(modelType));
  if (found) return found;
  const reason = unsupported[modelType];
  if (reason !== undefined)
    throw new ModelError(`${path}: model_type ${JSON.stringify(modelType)} is not supported: ${reason}`);
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
