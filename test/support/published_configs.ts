/** Configurations of published models, with the keys on which their shapes depend. */

type Config = Readonly<Record<string, unknown>>;

/** Layer types of a model in which each `period`-th layer has full attention, and the others are of type `others`. */
function layerTypes(numLayers: number, period: number, others: string): string[] {
  return Array.from({ length: numLayers }, (_, i) => ((i + 1) % period === 0 ? 'full_attention' : others));
}

const llama31: Config = {
  model_type: 'llama',
  vocab_size: 128_256,
  hidden_size: 4_096,
  intermediate_size: 14_336,
  num_hidden_layers: 32,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 131_072,
  rms_norm_eps: 1e-5,
  rope_theta: 500_000,
  hidden_act: 'silu',
  tie_word_embeddings: false,
  rope_scaling: {
    rope_type: 'llama3',
    factor: 8,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 8_192,
  },
};

const qwen35: Config = {
  architectures: ['Qwen3_5ForConditionalGeneration'],
  model_type: 'qwen3_5',
  tie_word_embeddings: false,
  text_config: {
    model_type: 'qwen3_5_text',
    vocab_size: 248_320,
    hidden_size: 4_096,
    intermediate_size: 12_288,
    num_hidden_layers: 32,
    num_attention_heads: 16,
    num_key_value_heads: 4,
    head_dim: 256,
    full_attention_interval: 4,
    layer_types: layerTypes(32, 4, 'linear_attention'),
    linear_conv_kernel_dim: 4,
    linear_num_key_heads: 16,
    linear_num_value_heads: 32,
    linear_key_head_dim: 128,
    linear_value_head_dim: 128,
    attn_output_gate: true,
    attention_bias: false,
    max_position_embeddings: 262_144,
    rms_norm_eps: 1e-6,
    hidden_act: 'silu',
    mtp_num_hidden_layers: 1,
    mamba_ssm_dtype: 'float32',
    tie_word_embeddings: false,
    rope_parameters: {
      mrope_interleaved: true,
      mrope_section: [11, 11, 10],
      rope_type: 'default',
      rope_theta: 10_000_000,
      partial_rotary_factor: 0.25,
    },
  },
};

/** Keys that the sizes of Gemma 4 share. */
const gemma4: Config = {
  model_type: 'gemma4_text',
  vocab_size: 262_144,
  rms_norm_eps: 1e-6,
  final_logit_softcapping: 30,
  head_dim: 256,
  global_head_dim: 512,
  hidden_activation: 'gelu_pytorch_tanh',
  attention_bias: false,
  vocab_size_per_layer_input: 262_144,
  use_double_wide_mlp: false,
  tie_word_embeddings: true,
  rope_parameters: {
    full_attention: { partial_rotary_factor: 0.25, rope_theta: 1_000_000, rope_type: 'proportional' },
    sliding_attention: { rope_theta: 10_000, rope_type: 'default' },
  },
};

function gemma4With(sizes: Config): Config {
  return {
    architectures: ['Gemma4ForConditionalGeneration'],
    model_type: 'gemma4',
    tie_word_embeddings: true,
    text_config: { ...gemma4, ...sizes },
  };
}

const gemma4Mixture = gemma4With({
  hidden_size: 2_816,
  intermediate_size: 2_112,
  num_hidden_layers: 30,
  num_attention_heads: 16,
  num_key_value_heads: 8,
  num_global_key_value_heads: 2,
  attention_k_eq_v: true,
  num_kv_shared_layers: 0,
  layer_types: layerTypes(30, 6, 'sliding_attention'),
  sliding_window: 1_024,
  max_position_embeddings: 262_144,
  enable_moe_block: true,
  num_experts: 128,
  top_k_experts: 8,
  moe_intermediate_size: 704,
  hidden_size_per_layer_input: 0,
});

const gemma4Small = gemma4With({
  hidden_size: 2_560,
  intermediate_size: 10_240,
  num_hidden_layers: 42,
  num_attention_heads: 8,
  num_key_value_heads: 2,
  attention_k_eq_v: false,
  num_kv_shared_layers: 18,
  enable_moe_block: false,
  layer_types: layerTypes(42, 6, 'sliding_attention'),
  sliding_window: 512,
  max_position_embeddings: 131_072,
  hidden_size_per_layer_input: 256,
});

const glmFlash: Config = {
  model_type: 'glm4_moe_lite',
  vocab_size: 154_880,
  hidden_size: 2_048,
  intermediate_size: 10_240,
  num_hidden_layers: 47,
  num_attention_heads: 20,
  num_key_value_heads: 20,
  max_position_embeddings: 202_752,
  q_lora_rank: 768,
  kv_lora_rank: 512,
  qk_nope_head_dim: 192,
  qk_rope_head_dim: 64,
  v_head_dim: 256,
  n_routed_experts: 64,
  num_experts_per_tok: 4,
  n_shared_experts: 1,
  moe_intermediate_size: 1_536,
  n_group: 1,
  topk_group: 1,
  topk_method: 'noaux_tc',
  norm_topk_prob: true,
  routed_scaling_factor: 1.8,
  first_k_dense_replace: 1,
  num_nextn_predict_layers: 1,
  rms_norm_eps: 1e-5,
  attention_bias: false,
  rope_theta: 1_000_000,
  rope_scaling: null,
  partial_rotary_factor: 1,
  hidden_act: 'silu',
};

const granite4Micro: Config = {
  model_type: 'granitemoehybrid',
  vocab_size: 100_352,
  hidden_size: 2_048,
  intermediate_size: 8_192,
  num_hidden_layers: 40,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 131_072,
  layer_types: Array.from({ length: 40 }, (_, i) => ([5, 15, 25, 35].includes(i) ? 'attention' : 'mamba')),
  mamba_n_heads: 64,
  mamba_d_head: 64,
  mamba_d_state: 128,
  mamba_n_groups: 1,
  mamba_d_conv: 4,
  mamba_expand: 2,
  num_local_experts: 0,
  shared_intermediate_size: 8_192,
  position_embedding_type: 'nope',
  rms_norm_eps: 1e-5,
};

const lfm2: Config = {
  model_type: 'lfm2',
  vocab_size: 65_536,
  hidden_size: 2_048,
  block_ff_dim: 12_288,
  block_multiple_of: 256,
  num_hidden_layers: 16,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 128_000,
  full_attn_idxs: [2, 5, 8, 10, 12, 14],
  conv_L_cache: 3,
  conv_bias: false,
  norm_eps: 1e-5,
};

/** Configurations by the name of the model: plain attention, recurrent layers, windows, KV shared between layers, latent attention. */
export const publishedConfigs: Readonly<Record<string, Config>> = {
  'Llama-3.1-8B': llama31,
  'Qwen3.5-9B': qwen35,
  'Granite-4.0-H-Micro': granite4Micro,
  'LFM2-1.2B': lfm2,
  'Gemma-4-26B-A4B': gemma4Mixture,
  'Gemma-4-E4B': gemma4Small,
  'GLM-4.7-Flash': glmFlash,
};
