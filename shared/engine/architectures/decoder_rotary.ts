/**
 * Rotary parameters as configurations have them: `rope_theta` at the top, `rope_scaling`, and the newer `rope_parameters`, flat or by
 * kinds of layers. Where these disagree, the value is the one that transformers 5 takes (`RotaryEmbeddingConfigMixin`): `rope_scaling`
 * replaces `rope_parameters`, and what stands inside wins over the top. A key that the kind of scaling does not have is refused.
 */
import { z } from 'zod';
import { withoutNulls } from '../../base/without_nulls.ts';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';

const positive = z.number().positive();
const factors = z.array(positive);

const values = {
  rope_theta: positive,
  partial_rotary_factor: positive.max(1),
  factor: positive,
  low_freq_factor: positive,
  high_freq_factor: positive,
  original_max_position_embeddings: positive,
  attention_factor: positive,
  mscale: positive,
  mscale_all_dim: positive,
  beta_fast: positive,
  beta_slow: positive,
  truncate: z.boolean(),
  short_factor: factors,
  long_factor: factors,
  llama_4_scaling_beta: positive,
  max_position_embeddings: positive,
};

type Values = { readonly [Key in keyof typeof values]?: z.infer<(typeof values)[Key]> };
type Name = keyof Values;

/** Kind of rotary scaling; configurations of Phi-3 may call longrope `su`. */
type RotaryKind = 'default' | 'proportional' | 'linear' | 'dynamic' | 'llama3' | 'yarn' | 'longrope';

/** Keys that each kind of scaling has besides `rope_theta` and `partial_rotary_factor`. */
const keysOfKind: Readonly<Record<RotaryKind, readonly Name[]>> = {
  default: [],
  proportional: ['factor'],
  linear: ['factor'],
  dynamic: ['factor'],
  llama3: ['factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'],
  yarn: [
    ...(['factor', 'original_max_position_embeddings', 'attention_factor', 'beta_fast', 'beta_slow'] as const),
    ...(['mscale', 'mscale_all_dim', 'truncate', 'llama_4_scaling_beta', 'max_position_embeddings'] as const),
  ],
  longrope: ['factor', 'original_max_position_embeddings', 'attention_factor', 'short_factor', 'long_factor'],
};
const ofEveryKind: readonly Name[] = ['rope_theta', 'partial_rotary_factor'];
/** Keys that divide a head among the positions of images in time, height and width, which are one and the same for text. */
const ofImages: readonly string[] = ['mrope_section', 'mrope_interleaved'];

const objectSchema = z.looseObject({}).nullish();

const schema = z.looseObject({
  rope_theta: positive.nullish(),
  partial_rotary_factor: positive.max(1).nullish(),
  rope_scaling: objectSchema,
  rope_parameters: objectSchema,
});

/** A kind of layers that `rope_parameters` can have an object for. */
export type LayerKind = 'full_attention' | 'sliding_attention';
const layerKinds: readonly string[] = ['full_attention', 'sliding_attention', 'chunked_attention', 'linear_attention'];

/** Rotary parameters of one kind of layers, checked against the keys that their kind of scaling has. */
export interface RotaryParameters extends Values {
  readonly kind: RotaryKind;
  /** The object that holds them, for messages. */
  readonly place: string;
}

/** A model whose layers with a window have rotary parameters of their own: Gemma 3 and 4, OLMo 3. */
interface RotaryOptions {
  /**
   * Whether kinds of layers have rotary parameters of their own. `rope_scaling` then applies to the full-attention layers, on top of
   * their `rope_parameters`.
   */
  readonly isByLayers?: boolean;
}

/** Returns the rotary parameters of one kind of layers. @throws ModelError for an unknown kind or key, or a value out of range. */
export function rotaryParameters(
  config: ModelConfig,
  layers: LayerKind = 'full_attention',
  { isByLayers = false }: RotaryOptions = {},
): RotaryParameters {
  const { rope_theta: theta, partial_rotary_factor: partial, rope_scaling: scaling, ...rest } = config.read(schema);
  const hasScaling = scaling && Object.keys(scaling).length > 0;
  const all = (hasScaling && !isByLayers ? scaling : rest.rope_parameters) ?? {};
  const place = hasScaling && !(isByLayers && layers === 'sliding_attention') ? 'rope_scaling' : 'rope_parameters';
  const isNested = layerKinds.some((kind) => kind in all);
  if (isByLayers) refuseOtherLayers(config, all);
  else if (isNested) refuseDifferentLayers(config, all, place);
  const own = isNested || isByLayers ? objectSchema.parse(all[layers]) : all;
  const isMerged = hasScaling && isByLayers && layers === 'full_attention';
  const given = { ...own, ...(isMerged ? scaling : {}) };
  // Keys at the top of a configuration apply to the full-attention layers.
  const top = layers === 'full_attention' ? { rope_theta: theta, partial_rotary_factor: partial } : {};
  return read(config, { ...withoutNulls(top), ...withoutNulls(given) }, place);
}

/** Layers that `rope_parameters` tells apart are computed with one table by all architectures but Gemma and OLMo 3. @throws ModelError */
function refuseDifferentLayers(config: ModelConfig, all: Readonly<Record<string, unknown>>, place: string): void {
  const normal = (one: unknown): string =>
    JSON.stringify(Object.entries(withoutNulls({ rope_type: 'default', ...objectSchema.parse(one) })).sort());
  const own = normal(all['full_attention']);
  for (const kind of Object.keys(all)) {
    if (!layerKinds.includes(kind)) refuse(config, `${place}.${kind} with ${place}.full_attention`);
    if (all[kind] !== null && normal(all[kind]) !== own)
      refuse(config, `${place}.${kind} that differs from ${place}.full_attention`);
  }
}

/**
 * Refuses every key of `rope_parameters` that is not a kind of layers, for models whose kinds have tables of their own. @throws
 * ModelError
 */
function refuseOtherLayers(config: ModelConfig, all: Readonly<Record<string, unknown>>): void {
  const kinds: readonly LayerKind[] = ['full_attention', 'sliding_attention'];
  for (const key of Object.keys(all))
    if (!kinds.some((kind) => kind === key))
      refuse(config, `rope_parameters.${key} (there are ${kinds.join(' and ')})`);
}

function read(config: ModelConfig, given: Readonly<Record<string, unknown>>, place: string): RotaryParameters {
  const { rope_type: newName, type: oldName, ...rest } = given;
  const kind = kindOf(config, newName ?? oldName ?? 'default', place);
  const known = [...ofEveryKind, ...keysOfKind[kind]];
  const parsed: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(rest)) {
    if (ofImages.includes(key)) continue;
    const name = known.find((one) => one === key);
    if (!name) refuse(config, `${place}.${key} with rope_type ${JSON.stringify(kind)} (which has ${known.join(', ')})`);
    const result = values[name].safeParse(value);
    if (!result.success) refuse(config, `${place}.${key} ${JSON.stringify(value)}`);
    parsed[name] = result.data;
  }
  return { kind, place, ...(parsed as Values) };
}

function kindOf(config: ModelConfig, name: unknown, place: string): RotaryKind {
  const kind = name === 'su' ? 'longrope' : name;
  if (typeof kind === 'string' && Object.hasOwn(keysOfKind, kind)) return kind as RotaryKind;
  return refuse(
    config,
    `${place} of type ${JSON.stringify(name)} (there are linear, proportional, dynamic, llama3, yarn and longrope)`,
  );
}
