/** Metadata of GGUF files that tests make, as llama.cpp's converter writes it from a configuration of Hugging Face's. */
import { isOfHybrid } from './gguf_hybrid.ts';

/** A value of a metadata key; whole numbers become integers but for `f32`. */
export type Value =
  number | string | boolean | readonly number[] | readonly string[] | readonly boolean[] | { readonly f32: number };

/** A config.json. */
export type Config = Readonly<Record<string, unknown>>;

/** Keys of YaRN besides its factor: Hugging Face's name to the file's. */
const yarnKeys = { beta_fast: 'yarn_beta_fast', beta_slow: 'yarn_beta_slow', attention_factor: 'yarn_attn_factor' };

/** Keys of the families that came after the hybrids. */
function newerMetadata(architecture: string, config: Config): Record<string, Value> {
  const prefixed = (keys: Readonly<Record<string, Value | undefined>>): Record<string, Value> =>
    Object.fromEntries(
      Object.entries(keys).flatMap(([key, value]) => (value === undefined ? [] : [[`${architecture}.${key}`, value]])),
    );
  const rope = (config['rope_parameters'] ?? {}) as Readonly<Record<string, number | undefined>>;
  switch (architecture) {
    case 'olmo2':
      return prefixed({
        'attention.sliding_window_pattern': windowFlags(config),
        'rope.freq_base_swa': localTheta(config),
      });
    case 'mistral3':
      return prefixed({
        'rope.dimension_count': Number(config['head_dim']),
        'rope.scaling.yarn_log_multiplier': float(rope['mscale_all_dim']),
        'attention.temperature_scale': float(rope['llama_4_scaling_beta']),
      });
    case 'deepseek2':
      return prefixed({ ...latentKeys(config, rope), ...mixtureKeys(config) });
    case 'glm4moe':
      return prefixed({
        ...mixtureKeys(config),
        expert_gating_func: 2,
        'rope.dimension_count': Number(config['head_dim']) * (rope['partial_rotary_factor'] ?? 0.5),
      });
    case 'minimax-m2':
      return prefixed({
        expert_gating_func: 2,
        expert_feed_forward_length: Number(config['intermediate_size']),
        'rope.dimension_count': Number(config['rotary_dim']),
      });
    case 'gemma4':
      return prefixed(gemma4Keys(config));
    default:
      return {};
  }
}

const float = (value: unknown): Value | undefined => (typeof value === 'number' ? { f32: value } : undefined);

const windowFlags = (config: Config): boolean[] | undefined =>
  (config['layer_types'] as string[] | undefined)?.map((type) => type === 'sliding_attention');

function localTheta(config: Config): Value | undefined {
  const rope = config['rope_parameters'] as Readonly<Record<string, { rope_theta?: number } | undefined>> | undefined;
  return float(rope?.['sliding_attention']?.rope_theta);
}

function latentKeys(
  config: Config,
  rope: Readonly<Record<string, number | undefined>>,
): Record<string, Value | undefined> {
  const of = (key: string): number => Number(config[key]);
  return {
    'attention.head_count_kv': 1,
    'attention.q_lora_rank': config['q_lora_rank'] === null ? undefined : of('q_lora_rank'),
    'attention.kv_lora_rank': of('kv_lora_rank'),
    'attention.key_length': of('kv_lora_rank') + of('qk_rope_head_dim'),
    'attention.value_length': of('kv_lora_rank'),
    'attention.key_length_mla': of('qk_nope_head_dim') + of('qk_rope_head_dim'),
    'attention.value_length_mla': of('v_head_dim'),
    'rope.dimension_count': of('qk_rope_head_dim'),
    'rope.scaling.yarn_log_multiplier':
      rope['mscale_all_dim'] === undefined ? undefined : float(0.1 * rope['mscale_all_dim']),
    expert_gating_func: 2,
  };
}

function mixtureKeys(config: Config): Record<string, Value | undefined> {
  const of = (key: string): number => Number(config[key]);
  const types = config['mlp_layer_types'] as string[] | undefined;
  return {
    leading_dense_block_count: types ? types.filter((type) => type === 'dense').length : of('first_k_dense_replace'),
    expert_shared_count: of('n_shared_experts'),
    expert_group_count: of('n_group'),
    expert_group_used_count: of('topk_group'),
    expert_weights_scale: float(config['routed_scaling_factor']),
    expert_weights_norm: config['norm_topk_prob'] === true ? true : undefined,
  };
}

function gemma4Keys(config: Config): Record<string, Value | undefined> {
  const of = (key: string): number => Number(config[key]);
  const flags = windowFlags(config) ?? [];
  const perLayer = config['per_layer_config'] as Readonly<
    Record<string, { head_dim: number; num_key_value_heads?: number }>
  >;
  const [full] = Object.values(perLayer);
  const firstShared = flags.length - of('num_kv_shared_layers');
  const inner = of('intermediate_size');
  return {
    'attention.sliding_window_pattern': flags,
    'attention.shared_kv_layers': of('num_kv_shared_layers'),
    'attention.key_length': full?.head_dim,
    'attention.value_length': full?.head_dim,
    'attention.key_length_swa': of('head_dim'),
    'attention.value_length_swa': of('head_dim'),
    'attention.head_count_kv':
      full?.num_key_value_heads === undefined
        ? of('num_key_value_heads')
        : flags.map((_, layer) => perLayer[layer]?.num_key_value_heads ?? of('num_key_value_heads')),
    embedding_length_per_layer_input: of('hidden_size_per_layer_input'),
    feed_forward_length:
      config['use_double_wide_mlp'] === true
        ? flags.map((_, layer) => (layer < firstShared ? inner : 2 * inner))
        : inner,
    'rope.freq_base_swa': localTheta(config),
    'rope.dimension_count': full?.head_dim,
    'rope.dimension_count_swa': of('head_dim'),
    expert_used_count: config['top_k_experts'] === null ? undefined : of('top_k_experts'),
  };
}

/** Divisors of the rotary frequencies of Gemma 4's full-attention layers: those of values that are not rotated are huge. */
function proportionalFactors(config: Config): Record<string, Float32Array> {
  const perLayer = Object.values(config['per_layer_config'] as Readonly<Record<string, { head_dim: number }>>);
  const rope = config['rope_parameters'] as { full_attention: { partial_rotary_factor: number } };
  const half = perLayer[0]!.head_dim / 2;
  const numRotated = Math.floor(half * rope.full_attention.partial_rotary_factor);
  return { 'rope_freqs.weight': Float32Array.from({ length: half }, (_, i) => (i < numRotated ? 1 : 1e30)) };
}

/** Divisors of the rotary frequencies, computed as the converter does for Llama 3 and copied for Phi. */
export function ropeFactors(config: Config): Record<string, Float32Array> {
  if (config['model_type'] === 'gemma4_text') return proportionalFactors(config);
  const scaling = config['rope_scaling'] as Readonly<Record<string, unknown>> | null | undefined;
  if (scaling?.['rope_type'] === 'llama3') {
    const of = (key: string): number => Number(scaling[key]);
    const dim = Number(config['head_dim']);
    const [factor, low, high] = [of('factor'), of('low_freq_factor'), of('high_freq_factor')];
    const context = of('original_max_position_embeddings');
    const factors = Float32Array.from({ length: dim / 2 }, (_, i) => {
      const wavelength = 2 * Math.PI * Number(config['rope_theta']) ** ((2 * i) / dim);
      if (wavelength < context / high) return 1;
      if (wavelength > context / low) return factor;
      const smooth = (context / wavelength - low) / (high - low);
      return 1 / ((1 - smooth) / factor + smooth);
    });
    return { 'rope_freqs.weight': factors };
  }
  const [short, long] = [scaling?.['short_factor'], scaling?.['long_factor']];
  if (!Array.isArray(short) || !Array.isArray(long)) return {};
  return {
    'rope_factors_short.weight': Float32Array.from(short as number[]),
    'rope_factors_long.weight': Float32Array.from(long as number[]),
  };
}

/** Metadata as the converter writes it from a configuration. */
export function metadataOf(architecture: string, config: Config): Record<string, Value> {
  const out: Record<string, Value> = { 'general.architecture': architecture, 'general.name': 'converted' };
  const put = (key: string, from: string, isFloat = false): void => {
    const value = config[from];
    if (typeof value === 'number') out[`${architecture}.${key}`] = isFloat ? { f32: value } : value;
  };
  put('context_length', 'max_position_embeddings');
  put('embedding_length', 'hidden_size');
  put('block_count', 'num_hidden_layers');
  put('feed_forward_length', 'intermediate_size');
  put('attention.head_count', 'num_attention_heads');
  put('attention.head_count_kv', 'num_key_value_heads');
  put('attention.key_length', 'head_dim');
  put('attention.value_length', 'head_dim');
  put('attention.layer_norm_rms_epsilon', 'rms_norm_eps', true);
  put('rope.freq_base', 'rope_theta', true);
  put('attention.sliding_window', 'sliding_window');
  put('attn_logit_softcapping', 'attn_logit_softcapping', true);
  put('final_logit_softcapping', 'final_logit_softcapping', true);
  const [counted = 'num_experts'] = ['num_local_experts', 'n_routed_experts'].filter(
    (key) => config[key] !== undefined,
  );
  put('expert_count', counted);
  put('expert_used_count', 'num_experts_per_tok');
  put(
    'expert_feed_forward_length',
    config['swiglu_limit'] === undefined ? 'moe_intermediate_size' : 'intermediate_size',
  );
  put('swiglu_clamp_exp', 'swiglu_limit', true);
  put('expert_shared_feed_forward_length', 'shared_expert_intermediate_size');
  put('ssm.conv_kernel', 'linear_conv_kernel_dim');
  put('ssm.state_size', 'linear_key_head_dim');
  put('ssm.group_count', 'linear_num_key_heads');
  put('ssm.time_step_rank', 'linear_num_value_heads');
  if (isOfHybrid('linear_attn', architecture)) {
    const parameters = config['rope_parameters'] as Readonly<Record<string, number>>;
    out[`${architecture}.ssm.inner_size`] =
      Number(config['linear_value_head_dim']) * Number(config['linear_num_value_heads']);
    out[`${architecture}.full_attention_interval`] = 4;
    out[`${architecture}.rope.freq_base`] = { f32: parameters['rope_theta']! };
    out[`${architecture}.rope.dimension_count`] = Number(config['head_dim']) * parameters['partial_rotary_factor']!;
    out[`${architecture}.rope.dimension_sections`] = [2, 1, 1, 0];
  }
  put('embedding_scale', 'embedding_multiplier', true);
  put('residual_scale', 'residual_multiplier', true);
  put('attention.scale', 'attention_multiplier', true);
  put('logit_scale', 'logits_scaling', true);
  put('rope.scaling.original_context_length', 'original_max_position_embeddings');
  const byLayers = config['rope_parameters'] as Readonly<Record<string, unknown>> | undefined;
  const parameters = (byLayers?.['full_attention'] ?? byLayers) as Readonly<Record<string, unknown>> | undefined;
  const theta = parameters?.['rope_theta'];
  if (typeof theta === 'number') out[`${architecture}.rope.freq_base`] = { f32: theta };
  const scaling = parameters ?? (config['rope_scaling'] as Readonly<Record<string, unknown>> | null | undefined);
  const kind = scaling?.['rope_type'] ?? scaling?.['type'];
  if (kind === 'linear' || kind === 'yarn') {
    out[`${architecture}.rope.scaling.type`] = kind;
    out[`${architecture}.rope.scaling.factor`] = { f32: Number(scaling?.['factor']) };
    const original = scaling?.['original_max_position_embeddings'];
    if (typeof original === 'number') out[`${architecture}.rope.scaling.original_context_length`] = original;
    for (const [from, to] of Object.entries(yarnKeys)) {
      const value = scaling?.[from];
      if (typeof value === 'number') out[`${architecture}.rope.scaling.${to}`] = { f32: value };
    }
  }
  if (kind === 'longrope') {
    const original = Number(config['original_max_position_embeddings']);
    const ratio = Number(config['max_position_embeddings']) / original;
    out[`${architecture}.rope.scaling.attn_factor`] = { f32: Math.sqrt(1 + Math.log(ratio) / Math.log(original)) };
  }
  return { ...out, ...newerMetadata(architecture, config) };
}
