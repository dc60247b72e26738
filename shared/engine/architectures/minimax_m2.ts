import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

const schema = z.looseObject({
  intermediate_size: z.int().positive(),
  num_local_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  head_dim: z.int().positive(),
  rotary_dim: z.int().positive().nullish(),
  scoring_func: z.string().nullish(),
  use_routing_bias: z.boolean().nullish(),
  use_qk_norm: z.boolean().nullish(),
  qk_norm_type: z.string().nullish(),
  attn_type_list: z.array(z.int()).nullish(),
  shared_intermediate_size: z.int().nonnegative().nullish(),
});

const mixture = {
  module: 'block_sparse_moe',
  router: 'gate',
  gate: 'w1',
  up: 'w3',
  down: 'w2',
  bias: 'e_score_correction_bias',
};

/** MiniMax-M2: grouped-query attention with one norm over all heads of q and one over all of k, a mixture by sigmoid scores in every layer. */
export const minimaxM2: Architecture = {
  modelTypes: ['minimax_m2'],
  shape: (config) => {
    const raw = config.read(schema);
    const { scoring_func: scoring = 'sigmoid', qk_norm_type: normType = 'per_layer' } = raw;
    if (scoring !== 'sigmoid') refuse(config, `scoring_func ${JSON.stringify(scoring)}`);
    if (normType !== 'per_layer') refuse(config, `qk_norm_type ${JSON.stringify(normType)}`);
    if (raw.attn_type_list?.some((type) => type !== 1)) refuse(config, 'attn_type_list with linear attention');
    if (raw.shared_intermediate_size) refuse(config, `shared_intermediate_size ${raw.shared_intermediate_size}`);
    const { num_local_experts: count, num_experts_per_tok: perToken } = raw;
    if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
    const sigmoid = { hasBias: raw.use_routing_bias ?? true, groups: 1, groupsPerToken: 1, scale: 1 };
    const experts = { count, perToken, isNormalised: true, sigmoid };
    return decoderShape(config, {
      layer: { qkNorm: (raw.use_qk_norm ?? true) ? 'all' : 'none' },
      mixtureOf: () => ({ inner: raw.intermediate_size, experts }),
      ...(raw.rotary_dim ? { rotaryDim: raw.rotary_dim } : {}),
      theta: 5_000_000,
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};
