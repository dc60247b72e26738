/** Converts a GGUF file's metadata to the config.json that the same model would have. */
import { isEnd, typesOf } from './gguf_markers.ts';
import { gemma4Attention, gemma4Parts } from './gguf_gemma4.ts';
import type { GgufFacts } from './gguf_facts.ts';
import { Keys } from './gguf_keys.ts';
import { groupedMixture, isGlmFlash, latentAttention, SIGMOID } from './gguf_latent.ts';
import { ropeScaling } from './gguf_rope.ts';
import { layerTypes } from './gguf_windows.ts';

/** Numbers of layers of the 27B models of Gemma, which scale queries by hidden / heads instead of the head width. */
const GEMMA_27B_LAYERS: Readonly<Record<string, number>> = { gemma2: 46, gemma3: 62 };

/** Every so many layers of OLMo 3 one has full attention where the file has no pattern. */
const OLMO3_PATTERN = 4;

/** Values of `tokenizer.ggml.token_type` for control tokens (3) and user-defined tokens (4). */
const ADDED = new Set([3, 4]);

/** Returns the config.json that the model would have. @throws Error when a needed key is missing, or has a value that is not supported. */
export function configOf(facts: GgufFacts): Record<string, unknown> {
  const { family, metadata, vocabSize, tensors } = facts;
  const keys = new Keys(metadata, family.name);
  const hidden = keys.needed('embedding_length');
  const heads = keys.needed('attention.head_count');
  const numLayers = keys.count('block_count') - (keys.number('nextn_predict_layers') ?? 0);
  return {
    model_type: family.modelType,
    vocab_size: vocabSize,
    max_position_embeddings: keys.needed('context_length'),
    eos_token_id: endTokens(metadata),
    hidden_size: hidden,
    intermediate_size: keys.first('feed_forward_length') ?? keys.needed('expert_feed_forward_length'),
    num_hidden_layers: numLayers,
    num_attention_heads: heads,
    rms_norm_eps: keys.needed('attention.layer_norm_rms_epsilon'),
    ...(keys.number('rope.freq_base') === undefined ? {} : { rope_theta: keys.number('rope.freq_base') }),
    hidden_act: family.modelType.startsWith('gemma') ? 'gelu_pytorch_tanh' : 'silu',
    attention_bias: tensors.has('blk.0.attn_q.bias'),
    mlp_bias: tensors.has('blk.0.ffn_up.bias'),
    tie_word_embeddings: !tensors.has('output.weight'),
    ...attentionOf(keys, facts, numLayers),
  };
}

/** Returns the configuration keys of attention and those that only this family has. */
function attentionOf(keys: Keys, facts: GgufFacts, numLayers: number): object {
  const { family, tensors, ropeFactors } = facts;
  switch (family.modelType) {
    case 'deepseek_v3':
      return {
        ...ropeScaling(keys, family, ropeFactors),
        ...latentAttention(keys, tensors),
        ...groupedMixture(keys, isGlmFlash(facts.vocabSize, numLayers)),
      };
    case 'gemma4_text':
      return { ...gemma4Attention(keys, facts, numLayers), ...gemma4Parts(keys, facts) };
    default:
      return plainAttention(keys, facts, numLayers);
  }
}

/** Returns the keys of attention whose heads are alike in all layers, and those that only this family has. */
function plainAttention(keys: Keys, facts: GgufFacts, numLayers: number): object {
  const { family, ropeFactors } = facts;
  const heads = keys.needed('attention.head_count');
  const width = keys.needed('embedding_length') / heads;
  const headDim = keys.number('attention.key_length') ?? width;
  const valueDim = keys.number('attention.value_length') ?? headDim;
  if (valueDim !== headDim)
    throw new Error(`heads of ${headDim} keys and ${valueDim} values are not supported: both must be as wide`);
  // A layer of another width is refused here: only Gemma 4 has such layers.
  keys.number('feed_forward_length');
  const rotated = keys.number('rope.dimension_count') ?? headDim;
  return {
    num_key_value_heads: keys.number('attention.head_count_kv') ?? heads,
    head_dim: headDim,
    ...(rotated < headDim ? { partial_rotary_factor: rotated / headDim } : {}),
    ...ropeScaling(keys, family, ropeFactors),
    sliding_window: keys.number('attention.sliding_window') ?? null,
    ...particulars(keys, facts, { width, headDim, numLayers }),
  };
}

/** Sizes that several keys depend on; `width` is that of a head where all heads together are as wide as the residual stream. */
interface Sizes {
  readonly width: number;
  readonly headDim: number;
  readonly numLayers: number;
}

/** Returns the configuration keys that only this family has. */
function particulars(keys: Keys, { family, tensors }: GgufFacts, sizes: Sizes): object {
  const { modelType, name } = family;
  const { width, headDim, numLayers } = sizes;
  switch (modelType) {
    case 'qwen2':
    case 'qwen3':
      return { use_sliding_window: false };
    case 'qwen3_moe':
      return {
        use_sliding_window: false,
        moe_intermediate_size: keys.needed('expert_feed_forward_length'),
        num_experts: keys.count('expert_count'),
        num_experts_per_tok: keys.needed('expert_used_count'),
        norm_topk_prob: true,
      };
    case 'qwen3_5_text':
      return { ...deltaNets(keys), linear_tensors: 'tiled' };
    case 'qwen3_5_moe_text':
      return { ...deltaNets(keys), ...sharedMixture(keys), linear_tensors: 'tiled' };
    case 'qwen3_next':
      return { ...deltaNets(keys), ...sharedMixture(keys), linear_tensors: 'fused_gates' };
    case 'mixtral':
      return {
        num_local_experts: keys.count('expert_count'),
        num_experts_per_tok: keys.needed('expert_used_count'),
      };
    case 'gpt_oss':
      return {
        intermediate_size: keys.needed('expert_feed_forward_length'),
        num_local_experts: keys.count('expert_count'),
        num_experts_per_tok: keys.needed('expert_used_count'),
        swiglu_limit: keys.number('swiglu_clamp_exp') ?? null,
      };
    case 'gemma2':
    case 'gemma3_text':
      return {
        query_pre_attn_scalar: keys.needed('block_count') === GEMMA_27B_LAYERS[name] ? width : headDim,
        attn_logit_softcapping: keys.number('attn_logit_softcapping') ?? (modelType === 'gemma2' ? 50 : null),
        final_logit_softcapping: keys.number('final_logit_softcapping') ?? (modelType === 'gemma2' ? 30 : null),
        ...(modelType === 'gemma3_text' ? { rope_theta: keys.number('rope.freq_base') ?? 1_000_000 } : {}),
      };
    case 'granite':
      return granite(keys, headDim);
    case 'olmo2':
      return keys.number('attention.sliding_window') ? olmo3(keys, numLayers) : {};
    case 'ministral3':
      if (keys.number('expert_count')) keys.refuse('expert_count', 'is not supported: only dense models are');
      return {};
    case 'glm4_moe':
      return { ...groupedMixture(keys, true), use_qk_norm: tensors.has('blk.0.attn_q_norm.weight') };
    case 'minimax_m2':
      return { ...minimax(keys), use_routing_bias: tensors.has('blk.0.exp_probs_b.bias') };
    default:
      return {};
  }
}

function granite(keys: Keys, headDim: number): object {
  return {
    embedding_multiplier: keys.number('embedding_scale') ?? null,
    residual_multiplier: keys.number('residual_scale') ?? null,
    attention_multiplier: keys.number('attention.scale') ?? 1 / Math.sqrt(headDim),
    logits_scaling: keys.number('logit_scale') ?? null,
  };
}

/** Returns the keys of OLMo 3, which files do not tell from OLMo 2 but by its window. Rotary scaling applies to full attention alone. */
function olmo3(keys: Keys, numLayers: number): object {
  const theta = keys.number('rope.freq_base_swa');
  return {
    model_type: 'olmo3',
    layer_types: layerTypes(keys, numLayers, OLMO3_PATTERN),
    ...(theta === undefined ? {} : { rope_parameters: { sliding_attention: { rope_theta: theta } } }),
  };
}

function minimax(keys: Keys): object {
  const gating = keys.number('expert_gating_func') ?? 0;
  if (gating !== SIGMOID) keys.refuse('expert_gating_func', `is ${gating}; ${SIGMOID} (sigmoid) is supported`);
  return {
    intermediate_size: keys.needed('expert_feed_forward_length'),
    num_local_experts: keys.count('expert_count'),
    num_experts_per_tok: keys.needed('expert_used_count'),
  };
}

/** Returns the keys of gated delta nets, which files name as those of state space models. */
function deltaNets(keys: Keys): object {
  const valueHeads = keys.needed('ssm.time_step_rank');
  return {
    full_attention_interval: keys.number('full_attention_interval') ?? null,
    linear_conv_kernel_dim: keys.needed('ssm.conv_kernel'),
    linear_key_head_dim: keys.needed('ssm.state_size'),
    linear_num_key_heads: keys.needed('ssm.group_count'),
    linear_num_value_heads: valueHeads,
    linear_value_head_dim: keys.needed('ssm.inner_size') / valueHeads,
  };
}

function sharedMixture(keys: Keys): object {
  return {
    moe_intermediate_size: keys.needed('expert_feed_forward_length'),
    shared_expert_intermediate_size: keys.number('expert_shared_feed_forward_length') ?? 0,
    num_experts: keys.count('expert_count'),
    num_experts_per_tok: keys.needed('expert_used_count'),
  };
}

/** Returns the ids of the tokens that end a generation: the ones that the file names, and markers that end a turn. */
function endTokens(metadata: Readonly<Record<string, unknown>>): number[] {
  const named = ['eos', 'eot', 'eom'].map((name) => metadata[`tokenizer.ggml.${name}_token_id`]);
  const ids = new Set(named.filter((id) => typeof id === 'number'));
  // SentencePiece's end token is 2 where the file names none.
  if (ids.size === 0 && metadata['tokenizer.ggml.model'] === 'llama') ids.add(2);
  const [tokens, types] = [metadata['tokenizer.ggml.tokens'], metadata['tokenizer.ggml.token_type']];
  if (Array.isArray(tokens) && Array.isArray(types)) {
    const added = new Map<string, number>();
    const own = typesOf(tokens.map(String), types.map(Number));
    tokens.forEach((token, id) => {
      if (ADDED.has(own[id] ?? 0) && isEnd(String(token))) added.set(String(token), id);
    });
    // In gpt-oss's vocabulary <|end|> ends a message of an answer, not the answer.
    if (added.has('<|return|>') && added.has('<|call|>')) {
      ids.delete(added.get('<|end|>') ?? -1);
      added.delete('<|end|>');
    }
    for (const id of added.values()) ids.add(id);
  }
  return [...ids];
}
