import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

const positive = z.int().positive();

const schema = z.looseObject({
  num_hidden_layers: positive,
  norm_eps: z.number().positive().nullish(),
  conv_L_cache: positive.nullish(),
  conv_bias: z.boolean().nullish(),
  layer_types: z.array(z.string()).nullish(),
  full_attn_idxs: z.array(z.int().nonnegative()).nullish(),
  intermediate_size: positive.nullish(),
  block_auto_adjust_ff_dim: z.boolean().nullish(),
  block_ffn_dim_multiplier: z.number().positive().nullish(),
  block_multiple_of: positive.nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  /** Names that older configurations have for the two values. */
  block_ff_dim: positive.nullish(),
  tie_embedding: z.boolean().nullish(),
});

type Raw = z.infer<typeof schema>;

/** Values that transformers takes where the configuration has no such key. */
const DEFAULTS = { epsilon: 1e-5, taps: 3, inner: 12_288, multipleOf: 256, theta: 1_000_000 };

const isConvolution: Readonly<Record<string, boolean>> = { conv: true, full_attention: false };

const renamed = {
  'model.norm': 'model.embedding_norm',
  input_layernorm: 'operator_norm',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'feed_forward.w1',
  'mlp.up_proj': 'feed_forward.w3',
  'mlp.down_proj': 'feed_forward.w2',
  'self_attn.q_norm': 'self_attn.q_layernorm',
  'self_attn.k_norm': 'self_attn.k_layernorm',
  'self_attn.o_proj': 'self_attn.out_proj',
};

/** Returns for each layer whether it is a convolution. @throws ModelError for another type of layer, or as many types as no layer has */
function convolutionsOf(config: ModelConfig, raw: Raw): boolean[] {
  const { num_hidden_layers: numLayers, layer_types: types, full_attn_idxs: attentions } = raw;
  if (types && types.length !== numLayers) refuse(config, `${types.length} layer_types for ${numLayers} layers`);
  const found = Array.from({ length: numLayers }, (_, layer) => {
    const type = types?.[layer] ?? (attentions?.includes(layer) === false ? 'conv' : 'full_attention');
    return isConvolution[type] ?? refuse(config, `a layer of type ${type}`);
  });
  return found.includes(false) ? found : refuse(config, 'no layer of type full_attention');
}

/** Returns the width of the MLPs: two thirds of what the configuration says, times a factor, up to a multiple, unless it is exact. */
function innerOf(raw: Raw): number {
  const whole = raw.block_ff_dim ?? raw.intermediate_size ?? DEFAULTS.inner;
  if (raw.block_auto_adjust_ff_dim === false) return whole;
  const share = Math.floor((2 * whole) / 3);
  if (raw.block_ffn_dim_multiplier === null) return share;
  const multiple = raw.block_multiple_of ?? DEFAULTS.multipleOf;
  return multiple * Math.ceil(Math.floor((raw.block_ffn_dim_multiplier ?? 1) * share) / multiple);
}

/** Liquid AI's LFM2: short convolutions between gates, and attention with normalised heads in some layers. */
export const lfm2: Architecture = {
  modelTypes: ['lfm2'],
  shape: (config) => {
    const raw = config.read(schema);
    const convolutions = convolutionsOf(config, raw);
    const taps = raw.conv_L_cache ?? DEFAULTS.taps;
    if (taps < 2 || taps > 4) refuse(config, `conv_L_cache ${taps}`);
    const convolution = { taps, hasBias: raw.conv_bias ?? false };
    const inner = innerOf(raw);
    return decoderShape(config, {
      layer: { qkNorm: 'head', hasQkvBias: false, hasOutputBias: false, hasMlpBias: false },
      model: {
        isTied: raw.tie_embedding ?? raw.tie_word_embeddings ?? true,
        epsilon: raw.norm_eps ?? DEFAULTS.epsilon,
      },
      theta: DEFAULTS.theta,
      layerOf: (layer) => ({ inner, ...(convolutions[layer] ? { convolution } : {}) }),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { renamed }),
};
