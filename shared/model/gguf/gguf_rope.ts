/** Rotary scaling as the metadata of a GGUF file has it, as the `rope_scaling` of a config.json. */
import type { RopeFactors } from './gguf_facts.ts';
import type { GgufFamily } from './gguf_families.ts';
import type { Keys } from './gguf_keys.ts';

/** The converter multiplies DeepSeek's `mscale_all_dim` by this; other families have it as it is. */
const LATENT_LOG_FACTOR = 0.1;

/** Returns `rope_scaling`, nothing for a file without scaling. @throws Error for a value that is not supported. */
export function ropeScaling(keys: Keys, family: GgufFamily, { all, short, long }: RopeFactors): object {
  const original = keys.number('rope.scaling.original_context_length');
  if (all) {
    // The factors hold for every context length, so short and long ones are the same.
    const originalPositions = keys.needed('context_length');
    return {
      rope_scaling: {
        rope_type: 'longrope',
        short_factor: all,
        long_factor: all,
        original_max_position_embeddings: originalPositions,
        attention_factor: 1,
      },
    };
  }
  if (short && long) {
    return {
      rope_scaling: {
        rope_type: 'longrope',
        short_factor: short,
        long_factor: long,
        original_max_position_embeddings: original ?? keys.needed('context_length'),
        attention_factor: keys.number('rope.scaling.attn_factor') ?? null,
      },
    };
  }
  const kind = keys.text('rope.scaling.type') ?? (keys.number('rope.scale_linear') === undefined ? 'none' : 'linear');
  const factor = keys.number('rope.scaling.factor') ?? keys.number('rope.scale_linear');
  if (kind !== 'yarn' && keys.number('attention.temperature_scale'))
    keys.refuse('attention.temperature_scale', `without rope.scaling.type yarn is not supported (it is ${kind})`);
  if (kind === 'none' || (kind === 'linear' && (factor ?? 1) === 1)) return {};
  return {
    rope_scaling: {
      rope_type: kind,
      factor: factor ?? null,
      ...(original === undefined || kind !== 'yarn' ? {} : { original_max_position_embeddings: original }),
      ...(kind === 'yarn' ? yarn(keys, family, factor ?? 1) : {}),
    },
  };
}

/** Returns the keys that only YaRN has. */
function yarn(keys: Keys, { modelType }: GgufFamily, factor: number): object {
  const extrapolation = keys.number('rope.scaling.yarn_ext_factor') ?? 1;
  if (extrapolation !== 1) keys.refuse('rope.scaling.yarn_ext_factor', `is ${extrapolation}; 1 is supported`);
  const isLatent = modelType === 'deepseek_v3';
  // A file cannot say that its model has no such factor but by 0.
  const stored = keys.number('rope.scaling.yarn_log_multiplier') || undefined;
  const allDim = stored === undefined || !isLatent ? stored : Number((stored / LATENT_LOG_FACTOR).toPrecision(6));
  // The file has one of both factors: in DeepSeek's models they are equal, in others the other one is 1.
  const ratio =
    allDim === undefined ? magnitude(factor, 1) : magnitude(factor, isLatent ? allDim : 1) / magnitude(factor, allDim);
  const attentionFactor = keys.number('rope.scaling.attn_factor');
  const written = keys.number('rope.scaling.yarn_attn_factor');
  // Converters of OLMo 3 wrote the whole factor under the one name, later ones under the other.
  const isOlmo = modelType.startsWith('olmo');
  const yarnFactor = isOlmo ? (written ?? attentionFactor) : written && written * (attentionFactor ?? 1);
  const beta = (name: string): object => {
    const value = keys.number(`rope.scaling.yarn_beta_${name}`);
    return value === undefined ? {} : { [`beta_${name}`]: value };
  };
  return {
    attention_factor: yarnFactor ?? ratio * (attentionFactor ?? 1),
    ...(allDim === undefined ? {} : { mscale_all_dim: allDim }),
    ...beta('fast'),
    ...beta('slow'),
    ...(keys.number('attention.temperature_scale')
      ? { llama_4_scaling_beta: keys.number('attention.temperature_scale') }
      : {}),
    // No key of the file says that gpt-oss blends frequencies between dimensions that are not whole numbers.
    ...(modelType === 'gpt_oss' ? { truncate: false } : {}),
  };
}

/** Returns the usual factor of cosines and sines with YaRN, for a model whose own is `scale`. */
function magnitude(factor: number, scale: number): number {
  return factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1;
}
