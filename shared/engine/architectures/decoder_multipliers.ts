/** Reads from configurations the factors that Granite's models have. */
import { z } from 'zod';
import type { ModelConfig } from '../../model/model_folder.ts';
import type { DecoderTraits } from './decoder_config.ts';

const multiplier = z.number().positive().nullish();

const schema = z.looseObject({
  embedding_multiplier: multiplier,
  residual_multiplier: multiplier,
  attention_multiplier: multiplier,
  logits_scaling: multiplier,
});

/** Returns the factors of embeddings, branches, scores and logits; where one is absent it is 1. */
export function multipliersOf(config: ModelConfig): Required<Pick<DecoderTraits, 'layer' | 'model'>> {
  const raw = config.read(schema);
  return {
    layer: { scoreScale: raw.attention_multiplier ?? 1 },
    model: {
      embeddingScale: raw.embedding_multiplier ?? 1,
      branchScale: raw.residual_multiplier ?? 1,
      logitScale: 1 / (raw.logits_scaling ?? 1),
    },
  };
}
