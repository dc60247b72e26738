import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { LayerShape, ModelShape, RopeShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { ropeShape, windowedRope } from './decoder_rope.ts';
import { rotaryParameters, type RotaryParameters } from './decoder_rotary.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const positive = z.int().positive();

const schema = z.looseObject({
  hidden_size: positive,
  intermediate_size: positive,
  num_hidden_layers: positive,
  num_key_value_heads: positive,
  head_dim: positive.nullish(),
  /** Head sizes of single layers, as transformers 5 writes them; older files have the two keys after it, for full-attention layers. */
  per_layer_config: z
    .record(z.string(), z.looseObject({ head_dim: positive.nullish(), num_key_value_heads: positive.nullish() }))
    .nullish(),
  global_head_dim: positive.nullish(),
  num_global_key_value_heads: positive.nullish(),
  attention_k_eq_v: z.boolean().nullish(),
  num_kv_shared_layers: z.int().nonnegative().nullish(),
  use_double_wide_mlp: z.boolean().nullish(),
  hidden_size_per_layer_input: z.int().nonnegative().nullish(),
  vocab_size_per_layer_input: positive.nullish(),
  enable_moe_block: z.boolean().nullish(),
  num_experts: positive.nullish(),
  top_k_experts: positive.nullish(),
  moe_intermediate_size: positive.nullish(),
  final_logit_softcapping: z.number().positive().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  use_bidirectional_attention: z.string().nullish(),
  rope_parameters: z.looseObject({}).nullish(),
});

type Raw = z.infer<typeof schema>;

/** Values that transformers uses for absent keys. Every so many layers, and last, one has full attention. */
const DEFAULTS = {
  headDim: 256,
  globalHeadDim: 512,
  pattern: 6,
  window: 512,
  localTheta: 10_000,
  theta: 1_000_000,
  inputWidth: 256,
  inputVocab: 262_144,
};

/** Rotary parameters of full-attention layers where the configuration has none at all. */
const fullRotary: RotaryParameters = { kind: 'proportional', place: 'rope_parameters', partial_rotary_factor: 0.25 };

/** Head size and KV heads of a layer. */
function headsOf(raw: Raw, layer: number, isWindowed: boolean): { readonly headDim: number; readonly kvHeads: number } {
  const common = { headDim: raw.head_dim ?? DEFAULTS.headDim, kvHeads: raw.num_key_value_heads };
  if (raw.per_layer_config) {
    const { head_dim: headDim, num_key_value_heads: kvHeads } = raw.per_layer_config[String(layer)] ?? {};
    return { headDim: headDim ?? common.headDim, kvHeads: kvHeads ?? common.kvHeads };
  }
  if (isWindowed) return common;
  const kvHeads = raw.attention_k_eq_v ? raw.num_global_key_value_heads : undefined;
  return { headDim: raw.global_head_dim ?? DEFAULTS.globalHeadDim, kvHeads: kvHeads ?? common.kvHeads };
}

/** The rotary table of full-attention layers, which all have heads of one size. */
function fullRope(config: ModelConfig, { rope_parameters: own }: Raw, headDims: readonly number[]): RopeShape {
  const [headDim = DEFAULTS.globalHeadDim] = headDims;
  if (headDims.some((one) => one !== headDim)) refuse(config, `full_attention heads of ${headDims.join(', ')} values`);
  const parameters = own ? rotaryParameters(config, 'full_attention', { isByLayers: true }) : fullRotary;
  return ropeShape(config, parameters, headDim, DEFAULTS.theta);
}

/**
 * Returns by layer which earlier layer's K and V it reads, undefined for its own: each of the last layers reads those of the last layer
 * of its kind before them. @throws ModelError when there is no such layer
 */
function kvSources(config: ModelConfig, raw: Raw, isWindowed: readonly boolean[]): (number | undefined)[] {
  const first = isWindowed.length - (raw.num_kv_shared_layers ?? 0);
  return isWindowed.map((kind, layer) => {
    if (layer < first) return undefined;
    const from = first > 0 ? isWindowed.lastIndexOf(kind, first - 1) : -1;
    return from < 0 ? refuse(config, `num_kv_shared_layers ${raw.num_kv_shared_layers}`) : from;
  });
}

/** The mixture next to every layer's MLP. @throws ModelError when the configuration does not say how large it is */
function mixtureOf(config: ModelConfig, raw: Raw): Pick<LayerShape, 'parallelMixture'> {
  if (!raw.enable_moe_block) return {};
  const { num_experts: count, top_k_experts: perToken, moe_intermediate_size: inner } = raw;
  if (!count || !perToken || !inner)
    return refuse(config, 'enable_moe_block without num_experts, top_k_experts and moe_intermediate_size');
  if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
  return { parallelMixture: { inner, experts: { count, perToken, isNormalised: true } } };
}

function layerInputsOf(raw: Raw): Pick<ModelShape, 'layerInputs'> {
  const { hidden_size_per_layer_input: width = DEFAULTS.inputWidth } = raw;
  if (!width) return {};
  return { layerInputs: { width, vocabSize: raw.vocab_size_per_layer_input ?? DEFAULTS.inputVocab } };
}

/**
 * The text part of Google's Gemma 4: full-attention layers have wider heads, of which a quarter is rotated, and may have one product
 * for k and v; every layer ends with a scalar. The smaller models have inputs for each layer, and last layers that read the K and V of
 * earlier ones.
 */
export const gemma4: Architecture = {
  modelTypes: ['gemma4_text'],
  shape: (config) => {
    const raw = config.read(schema);
    const last = raw.num_hidden_layers - 1;
    const isWindowed = windowedLayers(config, (layer) => layer < last && (layer + 1) % DEFAULTS.pattern !== 0);
    if (isWindowed[last]) refuse(config, 'a last layer of type sliding_attention');
    if (raw.use_bidirectional_attention === 'all') refuse(config, 'use_bidirectional_attention "all"');
    const window = commonWindow(config, DEFAULTS.window);
    if (isWindowed.includes(true) && window === 0) refuse(config, 'sliding_attention without a sliding_window');
    const heads = isWindowed.map((one, layer) => headsOf(raw, layer, one));
    const mixture = mixtureOf(config, raw);
    const sources = kvSources(config, raw, isWindowed);
    const full = heads.filter((_, layer) => !isWindowed[layer]).map(({ headDim }) => headDim);
    const local = windowedRope(config, raw.head_dim ?? DEFAULTS.headDim, DEFAULTS.localTheta);
    return decoderShape(config, {
      activation: 'gelu_pytorch_tanh',
      layer: { qkNorm: 'head', norms: 'both', scoreScale: 1, hasMlpBias: false },
      model: {
        isTied: raw.tie_word_embeddings ?? true,
        embeddingScale: Math.sqrt(raw.hidden_size),
        logitCap: raw.final_logit_softcapping ?? 0,
        ropes: { plain: fullRope(config, raw, full), local },
        ...layerInputsOf(raw),
      },
      windowOf: (layer) => (isWindowed[layer] ? window : 0),
      ropeOf: (layer) => (isWindowed[layer] ? 'local' : 'plain'),
      hasRopesByLayers: true,
      layerOf: (layer) => {
        const fromLayer = sources[layer];
        const isOneProduct = (raw.attention_k_eq_v ?? false) && !isWindowed[layer];
        return {
          ...heads[layer],
          kv: { hasValueNorm: true, isOneProduct, ...(fromLayer === undefined ? {} : { fromLayer }) },
          ...(fromLayer !== undefined && raw.use_double_wide_mlp ? { inner: 2 * raw.intermediate_size } : {}),
          hasScalar: true,
          ...mixture,
        };
      },
    });
  },
  program: decoderProgram,
};
