import { z } from 'zod';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

const multiplier = z.number().positive().nullish();

const schema = z.looseObject({
  embedding_multiplier: multiplier,
  residual_multiplier: multiplier,
  attention_multiplier: multiplier,
  logits_scaling: multiplier,
});

/** IBM's Granite 3: as Llama with multipliers; where one is absent it is 1. */
export const granite: Architecture = {
  modelTypes: ['granite'],
  shape: (config) => {
    const raw = config.read(schema);
    return decoderShape(config, {
      layer: { scoreScale: raw.attention_multiplier ?? 1 },
      model: {
        embeddingScale: raw.embedding_multiplier ?? 1,
        branchScale: raw.residual_multiplier ?? 1,
        logitScale: 1 / (raw.logits_scaling ?? 1),
      },
    });
  },
  program: decoderProgram,
};
