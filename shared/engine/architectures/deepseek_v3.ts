import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { latentTraits } from './decoder_latent.ts';
import { groupedMixture, groupedMixtures } from './decoder_mixture.ts';

/** DeepSeek-V3 and R1, Kimi K2 and GLM-4.7-Flash: latent attention, and mixtures by sigmoid scores after the first layers. */
export const deepseekV3: Architecture = {
  modelTypes: ['deepseek_v3', 'kimi_k2', 'glm4_moe_lite'],
  shape: (config) => decoderShape(config, { ...latentTraits(config), mixtureOf: groupedMixtures(config) }),
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture: groupedMixture }),
};
