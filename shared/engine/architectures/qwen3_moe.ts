import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { optionalWindows } from './decoder_windows.ts';

const schema = z.looseObject({
  moe_intermediate_size: z.int().positive(),
  /** Number of experts; `num_local_experts` is the other name of this key, which transformers 5 uses. */
  num_experts: z.int().positive().nullish(),
  num_local_experts: z.int().positive().nullish(),
  num_experts_per_tok: z.int().positive(),
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: z.int().positive().nullish(),
  mlp_only_layers: z.array(z.int().nonnegative()).nullish(),
});

const mixture = { module: 'mlp', router: 'gate', gate: 'gate_proj', up: 'up_proj', down: 'down_proj' };

/** Alibaba's Qwen3 mixtures: as Qwen3, with a mixture in every layer, or in those that the configuration does not except. */
export const qwen3Moe: Architecture = {
  modelTypes: ['qwen3_moe'],
  shape: (config) => {
    const raw = config.read(schema);
    const windows = optionalWindows(config);
    const { num_experts_per_tok: perToken, norm_topk_prob: isNormalised } = raw;
    const count = raw.num_experts ?? raw.num_local_experts ?? refuse(config, 'no num_experts');
    if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
    const experts = { count, perToken, isNormalised: isNormalised ?? false };
    const isMixture = (layer: number): boolean =>
      !raw.mlp_only_layers?.includes(layer) && (layer + 1) % (raw.decoder_sparse_step ?? 1) === 0;
    return decoderShape(config, {
      layer: { qkNorm: 'head', hasMlpBias: false },
      windowOf: (layer) => windows[layer] ?? 0,
      mixtureOf: (layer) => (isMixture(layer) ? { inner: raw.moe_intermediate_size, experts } : undefined),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};
