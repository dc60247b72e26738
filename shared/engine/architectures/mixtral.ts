import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow } from './decoder_windows.ts';

const schema = z.looseObject({
  intermediate_size: z.int().positive(),
  num_local_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
});

/** The rotary base that transformers takes where the key is absent. */
const MIXTRAL_THETA = 1_000_000;

const mixture = { module: 'block_sparse_moe', router: 'gate', gate: 'w1', up: 'w3', down: 'w2' };

/** Mistral AI's Mixtral: as Mistral, with a mixture of experts in every layer. */
export const mixtral: Architecture = {
  modelTypes: ['mixtral'],
  shape: (config) => {
    const { intermediate_size: inner, num_local_experts: count, num_experts_per_tok: perToken } = config.read(schema);
    if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
    const window = commonWindow(config);
    return decoderShape(config, {
      layer: { hasQkvBias: false, hasOutputBias: false, hasMlpBias: false },
      theta: MIXTRAL_THETA,
      windowOf: () => window,
      mixtureOf: () => ({ inner, experts: { count, perToken, isNormalised: true } }),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};
