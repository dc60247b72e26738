/** Gemma 4 as the metadata of a GGUF file has it: two kinds of layers, whose heads differ, inputs of single layers, and mixtures. */
import type { GgufFacts } from './gguf_facts.ts';
import type { Keys } from './gguf_keys.ts';
import { layerTypes } from './gguf_windows.ts';

/** Values that are used for absent keys: every so many layers one has full attention. */
const DEFAULTS = { pattern: 6, localTheta: 10_000, theta: 1_000_000 };

/** A frequency that is divided by as much is none. */
const UNROTATED = 1e29;

/**
 * Returns the keys of attention. The file's common keys are those of layers with full attention, those that end with `_swa` of layers
 * with a window. @throws Error for values that are not supported
 */
export function gemma4Attention(keys: Keys, facts: GgufFacts, numLayers: number): object {
  const types = layerTypes(keys, numLayers, DEFAULTS.pattern);
  const full = types.flatMap((type, layer) => (type === 'full_attention' ? [layer] : []));
  const windowed = types.indexOf('sliding_attention');
  const [headDim, localDim] = [sizeOf(keys, ''), sizeOf(keys, '_swa')];
  const rotated = keys.number('rope.dimension_count_swa') ?? localDim;
  if (rotated !== localDim)
    keys.refuse('rope.dimension_count_swa', `is ${rotated}, of heads of ${localDim}: only whole heads are supported`);
  const counts = keys.list('attention.head_count_kv');
  if (counts && counts.length < numLayers)
    keys.refuse('attention.head_count_kv', `has ${counts.length} values for ${numLayers} layers`);
  const kvHeads = (layer: number): number => Number(counts?.[layer] ?? keys.needed('attention.head_count_kv'));
  const perLayer = full.map((layer) => [layer, { head_dim: headDim, num_key_value_heads: kvHeads(layer) }]);
  const numShared = keys.number('attention.shared_kv_layers') ?? 0;
  return {
    layer_types: types,
    head_dim: localDim,
    num_key_value_heads: kvHeads(Math.max(windowed, 0)),
    per_layer_config: Object.fromEntries(perLayer) as object,
    attention_k_eq_v: isOneProduct(
      facts,
      full.filter((layer) => layer < numLayers - numShared),
    ),
    num_kv_shared_layers: numShared,
    use_double_wide_mlp: isDoubleWide(keys, numLayers - numShared),
    sliding_window: keys.needed('attention.sliding_window'),
    rope_parameters: {
      full_attention: {
        rope_type: 'proportional',
        partial_rotary_factor: rotatedShare(facts, headDim),
        rope_theta: keys.number('rope.freq_base') ?? DEFAULTS.theta,
      },
      sliding_attention: { rope_type: 'default', rope_theta: keys.number('rope.freq_base_swa') ?? DEFAULTS.localTheta },
    },
  };
}

/** Returns the keys of inputs of single layers, of the mixture next to each MLP, and of the logits. */
export function gemma4Parts(keys: Keys, { tensors }: GgufFacts): object {
  const numExperts = keys.number('expert_count') ?? 0;
  const [inputVocab] = tensors.get('per_layer_token_embd.weight')?.shape ?? [];
  return {
    final_logit_softcapping: keys.number('final_logit_softcapping') ?? null,
    hidden_size_per_layer_input: keys.number('embedding_length_per_layer_input') ?? 0,
    vocab_size_per_layer_input: inputVocab ?? null,
    ...(numExperts === 0
      ? {}
      : {
          enable_moe_block: true,
          num_experts: keys.count('expert_count'),
          top_k_experts: keys.needed('expert_used_count'),
          moe_intermediate_size: keys.needed('expert_feed_forward_length'),
        }),
  };
}

/** Returns the values of a head of one kind of layers. @throws Error when keys and values differ */
function sizeOf(keys: Keys, suffix: string): number {
  const headDim = keys.needed(`attention.key_length${suffix}`);
  const valueDim = keys.number(`attention.value_length${suffix}`) ?? headDim;
  if (valueDim !== headDim) keys.refuse(`attention.value_length${suffix}`, `is ${valueDim}, keys have ${headDim}`);
  return headDim;
}

/** Whether the layers with full attention have no product of their own for v. @throws Error when only some have none */
function isOneProduct({ family, tensors }: GgufFacts, full: readonly number[]): boolean {
  const without = full.filter((layer) => !tensors.has(`blk.${layer}.attn_v.weight`));
  if (without.length > 0 && without.length < full.length)
    throw new Error(`${family.name}: layers ${without.join(', ')} have no attn_v, others with full attention have one`);
  return without.length > 0;
}

/** Whether the layers that read the KV of others have MLPs of twice the width. @throws Error for any other difference between layers */
function isDoubleWide(keys: Keys, firstShared: number): boolean {
  const key = 'feed_forward_length';
  const widths = keys.list(key)?.map(Number) ?? [];
  const [width = 0] = widths;
  const last = widths.at(-1) ?? width;
  const isRegular = widths.every((one, layer) => one === (layer < firstShared ? width : last));
  if (!isRegular || (last !== width && last !== 2 * width))
    keys.refuse(key, 'differs between layers other than by twice the width in those without KV of their own');
  return last !== width;
}

/** Returns the share of a head that is rotated: the file divides the frequencies of all other values by so much that they are none. */
function rotatedShare({ ropeFactors: { all } }: GgufFacts, headDim: number): number {
  if (!all) throw new Error('rope_freqs.weight is missing');
  const first = all.findIndex((factor) => factor !== 1);
  const numRotated = first < 0 ? all.length : first;
  if (all.length !== headDim / 2 || all.slice(numRotated).some((factor) => factor < UNROTATED))
    throw new Error(`rope_freqs.weight has other factors than 1 and, after them, 1e30, or not ${headDim / 2} of them`);
  return (2 * numRotated) / headDim;
}
