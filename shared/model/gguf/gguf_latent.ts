/** Latent attention (MLA) and mixtures by sigmoid scores, DeepSeek-V3's, as the metadata of a GGUF file has them. */
import type { Keys } from './gguf_keys.ts';

/** Value of `expert_gating_func` for sigmoid scores. */
export const SIGMOID = 2;
const SOFTMAX = 1;

/** Sizes of GLM-4.7-Flash, whose files do not say how its experts are scored; llama.cpp knows them by these. */
const GLM_FLASH = { vocabSize: 154_880, numLayers: [47, 48] };

/**
 * Returns the keys of latent attention. Newer files have the heads' keys and values absorbed, in two tensors, and name the sizes of a
 * head next to those of the latent; older ones have them in one tensor, as checkpoints do.
 */
export function latentAttention(keys: Keys, tensors: ReadonlyMap<string, unknown>): object {
  const isAbsorbed = !tensors.has('blk.0.attn_kv_b.weight');
  const rotaryDim = keys.needed('rope.dimension_count');
  const sizeOf = (what: string): number =>
    isAbsorbed
      ? keys.needed(`attention.${what}_length_mla`)
      : (keys.number(`attention.${what}_length_mla`) ?? keys.needed(`attention.${what}_length`));
  return {
    num_key_value_heads: keys.needed('attention.head_count'),
    kv_lora_rank: keys.needed('attention.kv_lora_rank'),
    q_lora_rank: keys.number('attention.q_lora_rank') ?? null,
    qk_nope_head_dim: sizeOf('key') - rotaryDim,
    qk_rope_head_dim: rotaryDim,
    v_head_dim: sizeOf('value'),
    rope_interleave: true,
    ...(isAbsorbed ? { latent_tensors: 'absorbed' } : {}),
    sliding_window: null,
  };
}

/** Whether a `deepseek2` file without a gating function is GLM-4.7-Flash's, whose experts have sigmoid scores. */
export function isGlmFlash(vocabSize: number, numLayers: number): boolean {
  return vocabSize === GLM_FLASH.vocabSize && GLM_FLASH.numLayers.includes(numLayers);
}

/**
 * Returns the keys of mixtures after the first layers. `isSigmoidByDefault`: whether scores go through a sigmoid where the file does not
 * say it.
 * @throws Error for experts whose scores are no sigmoid.
 */
export function groupedMixture(keys: Keys, isSigmoidByDefault: boolean): object {
  const gating = keys.number('expert_gating_func') ?? (isSigmoidByDefault ? SIGMOID : SOFTMAX);
  if (gating !== SIGMOID)
    keys.refuse(
      'expert_gating_func',
      `is ${gating} (1, or absent: softmax, as in DeepSeek-V2); ${SIGMOID} (sigmoid) is supported`,
    );
  return {
    moe_intermediate_size: keys.needed('expert_feed_forward_length'),
    n_routed_experts: keys.count('expert_count'),
    n_shared_experts: keys.number('expert_shared_count') ?? 0,
    num_experts_per_tok: keys.needed('expert_used_count'),
    n_group: keys.number('expert_group_count') || 1,
    topk_group: keys.number('expert_group_used_count') || 1,
    norm_topk_prob: keys.flag('expert_weights_norm'),
    routed_scaling_factor: keys.number('expert_weights_scale') || 1,
    first_k_dense_replace: keys.number('leading_dense_block_count') ?? 0,
    scoring_func: 'sigmoid',
  };
}
