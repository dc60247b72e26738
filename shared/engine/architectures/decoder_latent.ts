/** Reads from configurations the sizes of latent attention (MLA): DeepSeek-V3's, which other families took over. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { LatentShape } from '../../model/model_shape.ts';
import type { DecoderTraits } from './decoder_config.ts';
import { rotaryParameters } from './decoder_rotary.ts';

const positive = z.int().positive();

const schema = z.looseObject({
  kv_lora_rank: positive,
  q_lora_rank: positive.nullish(),
  qk_nope_head_dim: positive,
  qk_rope_head_dim: positive,
  v_head_dim: positive,
  rope_interleave: z.boolean().nullish(),
  /** Written for GGUF files only: the heads' parts of keys and of values lie in two tensors, those of keys transposed. */
  latent_tensors: z.literal('absorbed').nullish(),
});

/** Sizes are multiples of this on all devices. */
const UNIT = 4;

/**
 * Returns the traits of a decoder with latent attention: its sizes, its heads and the factor of its scores. With yarn and
 * `mscale_all_dim` the scores have yarn's factor twice, where other models have it in cosines and sines. @throws ModelError
 */
export function latentTraits(config: ModelConfig): Pick<DecoderTraits, 'headDim' | 'layer'> {
  const raw = config.read(schema);
  const { q_lora_rank: queryRank, qk_nope_head_dim: plainDim, qk_rope_head_dim: rotaryDim } = raw;
  if (queryRank === undefined) refuse(config, 'a configuration without q_lora_rank (null: none)');
  for (const key of ['kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim'] as const)
    if (raw[key] % UNIT !== 0) refuse(config, `${key} ${raw[key]}, which is no multiple of ${UNIT},`);
  const latent: LatentShape = {
    rank: raw.kv_lora_rank,
    plainDim,
    rotaryDim,
    valueDim: raw.v_head_dim,
    queryRank,
    isInterleaved: raw.rope_interleave ?? true,
    ...(raw.latent_tensors === 'absorbed' ? { isAbsorbed: true } : {}),
  };
  const { kind, factor, mscale_all_dim: allDim } = rotaryParameters(config);
  if (allDim !== undefined && kind !== 'yarn') refuse(config, `mscale_all_dim with rope_type ${kind}`);
  if (allDim !== undefined && factor === undefined) refuse(config, 'mscale_all_dim without factor');
  const yarnScale =
    allDim !== undefined && factor !== undefined && factor > 1 ? 0.1 * allDim * Math.log(factor) + 1 : 1;
  return { headDim: rotaryDim, layer: { latent, scoreScale: yarnScale ** 2 / Math.sqrt(plainDim + rotaryDim) } };
}
