/** Converts a GGUF file's metadata to the config.json that the same model would have. */
import type { GgufFamily } from './gguf_families.ts';

/** Factors of rotary frequencies, which the file stores as small tensors; an absent field means that the file has no such tensor. */
export interface RopeFactors {
  /** Factors for every context length, as Llama 3 has them. */
  readonly all?: readonly number[];
  readonly short?: readonly number[];
  readonly long?: readonly number[];
}

/** Properties of a GGUF file from which {@link configOf} makes a configuration. */
export interface GgufFacts {
  readonly family: GgufFamily;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly vocabSize: number;
  readonly isTied: boolean;
  readonly hasAttentionBias: boolean;
  readonly hasMlpBias: boolean;
  readonly ropeFactors: RopeFactors;
}

/** Numbers of layers of the 27B models of Gemma, which scale queries by hidden / heads instead of the head width. */
const GEMMA_27B_LAYERS: Readonly<Record<string, number>> = { gemma2: 46, gemma3: 62 };

/** Most layers of a model, and most experts of a layer. */
const MAX_COUNT = 4_096;

/** Texts of tokens that end a generation, as in llama.cpp; used because files often name only one of them. */
const ENDS = new Set([
  ...['<|eot_id|>', '<|im_end|>', '<|end|>', '<|return|>', '<|call|>', '<end_of_turn>', '<|endoftext|>', '</s>'],
  ...['<|eom_id|>', '<EOT>', '_<EOT>', '[EOT]', '[EOS]', '<|end_of_text|>', '<end_of_utterance>', '<eos>'],
]);
/** Values of `tokenizer.ggml.token_type` for control tokens (3) and user-defined tokens (4). */
const ADDED = new Set([3, 4]);

/** Returns the config.json that the model would have. @throws Error when a needed key is missing, or has a value that is not supported. */
export function configOf(facts: GgufFacts): Record<string, unknown> {
  const { family, metadata, vocabSize, isTied, hasAttentionBias, hasMlpBias } = facts;
  const keys = new Keys(metadata, family.name);
  const hidden = keys.needed('embedding_length');
  const heads = keys.needed('attention.head_count');
  const headDim = keys.number('attention.key_length') ?? hidden / heads;
  const valueDim = keys.number('attention.value_length') ?? headDim;
  if (valueDim !== headDim)
    throw new Error(`heads of ${headDim} keys and ${valueDim} values are not supported: both must be as wide`);
  const rotated = keys.number('rope.dimension_count') ?? headDim;
  const window = keys.number('attention.sliding_window');
  return {
    model_type: family.modelType,
    vocab_size: vocabSize,
    max_position_embeddings: keys.needed('context_length'),
    eos_token_id: endTokens(metadata),
    hidden_size: hidden,
    intermediate_size: keys.number('feed_forward_length') ?? keys.needed('expert_feed_forward_length'),
    num_hidden_layers: keys.count('block_count') - (keys.number('nextn_predict_layers') ?? 0),
    num_attention_heads: heads,
    num_key_value_heads: keys.number('attention.head_count_kv') ?? heads,
    head_dim: headDim,
    rms_norm_eps: keys.needed('attention.layer_norm_rms_epsilon'),
    ...(keys.number('rope.freq_base') === undefined ? {} : { rope_theta: keys.number('rope.freq_base') }),
    ...(rotated < headDim ? { partial_rotary_factor: rotated / headDim } : {}),
    ...ropeScaling(keys, facts),
    hidden_act: family.modelType.startsWith('gemma') ? 'gelu_pytorch_tanh' : 'silu',
    attention_bias: hasAttentionBias,
    mlp_bias: hasMlpBias,
    tie_word_embeddings: isTied,
    sliding_window: window ?? null,
    ...particulars(keys, family, hidden / heads, headDim),
  };
}

/** Returns the configuration keys that only this family has. */
function particulars(keys: Keys, { modelType, name }: GgufFamily, width: number, headDim: number): object {
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
      return {
        embedding_multiplier: keys.number('embedding_scale') ?? null,
        residual_multiplier: keys.number('residual_scale') ?? null,
        attention_multiplier: keys.number('attention.scale') ?? 1 / Math.sqrt(headDim),
        logits_scaling: keys.number('logit_scale') ?? null,
      };
    case 'olmo2':
      if (keys.number('attention.sliding_window') !== undefined)
        throw new Error('olmo2 with a sliding_window is not supported');
      return {};
    default:
      return {};
  }
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

function ropeScaling(keys: Keys, { family, ropeFactors: { all, short, long } }: GgufFacts): object {
  const original = keys.number('rope.scaling.original_context_length');
  if (all) {
    // The factors hold for every context length, so short and long ones are the same.
    const originalPositions = keys.needed('context_length');
    return {
      rope_scaling: {
        ...{ rope_type: 'longrope', short_factor: all, long_factor: all },
        ...{ original_max_position_embeddings: originalPositions, attention_factor: 1 },
      },
    };
  }
  if (short && long) {
    return {
      rope_scaling: {
        ...{ rope_type: 'longrope', short_factor: short, long_factor: long },
        original_max_position_embeddings: original ?? keys.needed('context_length'),
        attention_factor: keys.number('rope.scaling.attn_factor') ?? null,
      },
    };
  }
  const kind = keys.text('rope.scaling.type') ?? (keys.number('rope.scale_linear') === undefined ? 'none' : 'linear');
  const factor = keys.number('rope.scaling.factor') ?? keys.number('rope.scale_linear');
  if (kind === 'none' || (kind === 'linear' && (factor ?? 1) === 1)) return {};
  return {
    rope_scaling: {
      ...{ rope_type: kind, factor: factor ?? null },
      ...(original === undefined || kind !== 'yarn' ? {} : { original_max_position_embeddings: original }),
      ...(kind === 'yarn' ? { attention_factor: yarnAttention(keys, factor ?? 1) } : {}),
      // No key of the file says that gpt-oss blends frequencies between dimensions that are not whole numbers.
      ...(kind === 'yarn' && family.modelType === 'gpt_oss' ? { truncate: false } : {}),
    },
  };
}

/** Returns the factor of cosines and sines: the usual one of YaRN, times the file's own factor. */
function yarnAttention(keys: Keys, factor: number): number {
  return (keys.number('rope.scaling.attn_factor') ?? 1) * (factor <= 1 ? 1 : 0.1 * Math.log(factor) + 1);
}

/** Returns the ids of the tokens that end a generation: the ones that the file names, and added tokens whose text is in ENDS. */
function endTokens(metadata: Readonly<Record<string, unknown>>): number[] {
  const named = ['eos', 'eot', 'eom'].map((name) => metadata[`tokenizer.ggml.${name}_token_id`]);
  const ids = new Set(named.filter((id) => typeof id === 'number'));
  // SentencePiece's end token is 2 where the file names none.
  if (ids.size === 0 && metadata['tokenizer.ggml.model'] === 'llama') ids.add(2);
  const [tokens, types] = [metadata['tokenizer.ggml.tokens'], metadata['tokenizer.ggml.token_type']];
  if (Array.isArray(tokens) && Array.isArray(types)) {
    const added = new Map<string, number>();
    tokens.forEach((token, id) => {
      if (ADDED.has(Number(types[id])) && ENDS.has(String(token))) added.set(String(token), id);
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

/** Reads metadata keys with the prefix of the architecture. */
class Keys {
  readonly #metadata: Readonly<Record<string, unknown>>;
  readonly #architecture: string;

  constructor(metadata: Readonly<Record<string, unknown>>, architecture: string) {
    this.#metadata = metadata;
    this.#architecture = architecture;
  }

  /** Returns a numeric key, or undefined when it is absent. @throws Error when the value is no number, or differs between layers. */
  number(key: string): number | undefined {
    const name = `${this.#architecture}.${key}`;
    const value = this.#metadata[name];
    if (value === undefined) return undefined;
    const values = (Array.isArray(value) ? value : [value]).map(Number);
    const [first] = values;
    if (first === undefined || !Number.isFinite(first)) throw new Error(`${name} is no number`);
    if (values.some((one) => one !== first)) throw new Error(`${name} differs between layers, which is not supported`);
    return shortest(first);
  }

  needed(key: string): number {
    const value = this.number(key);
    if (value !== undefined) return value;
    throw new Error(`${this.#architecture}.${key} is missing`);
  }

  /** Returns the number of layers or experts. @throws Error in words when the key is missing, or larger than MAX_COUNT. */
  count(key: string): number {
    const value = this.needed(key);
    if (value <= MAX_COUNT) return value;
    throw new Error(`${this.#architecture}.${key} is ${value}, which no model has`);
  }

  text(key: string): string | undefined {
    const value = this.#metadata[`${this.#architecture}.${key}`];
    return typeof value === 'string' ? value : undefined;
  }
}

/** Returns the number with the fewest digits that rounds to this f32: the value that the file's author wrote (1e-5, say). */
function shortest(value: number): number {
  if (Number.isInteger(value) || Math.fround(value) !== value) return value;
  for (let digits = 1; digits < 9; digits++) {
    const candidate = Number(value.toPrecision(digits));
    if (Math.fround(candidate) === value) return candidate;
  }
  return value;
}
