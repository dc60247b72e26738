import { z } from 'zod';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { groupedMixture, groupedMixtures } from './decoder_mixture.ts';

const schema = z.looseObject({ use_qk_norm: z.boolean().nullish() });

/** GLM-4.5 to 4.7: grouped-query attention with optional norms of heads, and DeepSeek-V3's mixtures after the first layers. */
export const glm4Moe: Architecture = {
  modelTypes: ['glm4_moe'],
  shape: (config) => {
    const { use_qk_norm: hasQkNorm } = config.read(schema);
    return decoderShape(config, {
      layer: { qkNorm: hasQkNorm ? 'head' : 'none', hasOutputBias: false, hasMlpBias: false },
      mixtureOf: groupedMixtures(config),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture: groupedMixture }),
};
