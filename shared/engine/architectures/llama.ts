import { z } from 'zod';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

const schema = z.looseObject({ attention_bias: z.boolean().nullish(), mlp_bias: z.boolean().nullish() });

/** Meta's Llama 2 and 3, and what was trained in its form. */
export const llama: Architecture = {
  modelTypes: ['llama'],
  shape: (config) => {
    const { attention_bias: attention, mlp_bias: mlp } = config.read(schema);
    const hasBias = attention ?? false;
    return decoderShape(config, { hasQkvBias: hasBias, hasOutputBias: hasBias, hasMlpBias: mlp ?? false }, () => 0);
  },
  program: decoderProgram,
};
