import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const schema = z.looseObject({
  num_hidden_layers: z.int().positive(),
  hidden_size: z.int().positive(),
  num_attention_heads: z.int().positive(),
  head_dim: z.int().positive().nullish(),
  /** 1: the layer rotates. */
  no_rope_layers: z.array(z.int().min(0).max(1)).nullish(),
  no_rope_layer_interval: z.int().positive().nullish(),
  use_sliding_window: z.boolean().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
});

/** Rotary base that transformers uses when the key is absent, as in configurations that transformers writes. */
const SMOLLM3_THETA = 2_000_000;
/** Every so many layers one does not rotate. */
const INTERVAL = 4;

/** Hugging Face's SmolLM3: as Llama, with layers that do not rotate. SmolLM and SmolLM2 are Llama. */
export const smollm3: Architecture = {
  modelTypes: ['smollm3'],
  shape: (config) => {
    const raw = config.read(schema);
    const { num_hidden_layers: numLayers } = raw;
    const interval = raw.no_rope_layer_interval ?? INTERVAL;
    const rotates =
      raw.no_rope_layers ?? Array.from({ length: numLayers }, (_, i) => ((i + 1) % interval === 0 ? 0 : 1));
    if (rotates.length !== numLayers) refuse(config, `${rotates.length} no_rope_layers for ${numLayers} layers`);
    const window = raw.use_sliding_window ? commonWindow(config) : 0;
    const isWindowed = windowedLayers(config, (layer) => window > 0 && rotates[layer] === 0);
    const dim = raw.head_dim ?? raw.hidden_size / raw.num_attention_heads;
    return decoderShape(config, {
      model: { isTied: raw.tie_word_embeddings ?? true, ropes: { none: { theta: 0, dim } } },
      theta: SMOLLM3_THETA,
      windowOf: (layer) => (isWindowed[layer] ? window : 0),
      ropeOf: (layer) => (rotates[layer] === 1 ? 'plain' : 'none'),
    });
  },
  program: decoderProgram,
};
