import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { LayerShape, ModelShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { deltaLayers } from './decoder_delta.ts';

const schema = z.looseObject({
  head_dim: z.int().positive().nullish(),
  attn_output_gate: z.boolean().nullish(),
});

const mixtureSchema = z.looseObject({
  moe_intermediate_size: z.int().positive(),
  shared_expert_intermediate_size: z.int().nonnegative(),
  num_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: z.int().positive().nullish(),
  mlp_only_layers: z.array(z.int().nonnegative()).nullish(),
});

const mixture = {
  module: 'mlp',
  router: 'gate',
  gate: 'gate_proj',
  up: 'up_proj',
  down: 'down_proj',
  shared: 'shared_expert',
  sharedGate: 'shared_expert_gate',
};

/** Share of a head that is rotated where a configuration does not say it. */
const ROTARY_SHARE = 0.25;

/** Shape of a decoder with gated delta nets, attention with output gates in between, and norms that are stored less 1. */
function hybridShape(
  config: ModelConfig,
  mixtureOf: (layer: number) => MixtureShape | undefined,
  isFused = false,
): ModelShape {
  const { head_dim: headDim, attn_output_gate: hasGate } = config.read(schema);
  if (hasGate === false) refuse(config, 'attn_output_gate false');
  const delta = deltaLayers(config, isFused);
  return decoderShape(config, {
    layer: { qkNorm: 'head', hasMlpBias: false, hasOutputGate: true },
    model: { hasNormOffset: true },
    ...(headDim ? { rotaryDim: headDim * ROTARY_SHARE } : {}),
    layerOf: (layer) => delta[layer] ?? {},
    mixtureOf,
  });
}

type MixtureShape = Pick<LayerShape, 'inner' | 'experts'>;

/** Returns the mixture of each layer, with a shared expert; undefined for layers that the configuration excepts. */
function sharedMixtures(config: ModelConfig): (layer: number) => MixtureShape | undefined {
  const raw = config.read(mixtureSchema);
  const { num_experts: count, num_experts_per_tok: perToken, shared_expert_intermediate_size: shared } = raw;
  if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
  const experts = {
    count,
    perToken,
    isNormalised: raw.norm_topk_prob ?? true,
    ...(shared > 0 ? { shared: { inner: shared, isGated: true } } : {}),
  };
  return (layer) => {
    const isMixture = !raw.mlp_only_layers?.includes(layer) && (layer + 1) % (raw.decoder_sparse_step ?? 1) === 0;
    return isMixture ? { inner: raw.moe_intermediate_size, experts } : undefined;
  };
}

/** Alibaba's Qwen3.5 and 3.6: gated delta nets, and attention with output gates in every fourth layer; the text of the multimodal models. */
export const qwen35: Architecture = {
  modelTypes: ['qwen3_5', 'qwen3_5_text'],
  shape: (config) => hybridShape(config, () => undefined),
  program: decoderProgram,
};

/** The mixtures of Qwen3.5 and 3.6, whose weights of a token's experts always sum to 1. */
export const qwen35Moe: Architecture = {
  modelTypes: ['qwen3_5_moe', 'qwen3_5_moe_text'],
  shape: (config) => hybridShape(config, sharedMixtures(config)),
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};

/** Qwen3-Next: as the mixtures of Qwen3.5, with the tensors of its delta nets fused by key heads. */
export const qwen3Next: Architecture = {
  modelTypes: ['qwen3_next'],
  shape: (config) => hybridShape(config, sharedMixtures(config), true),
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};
