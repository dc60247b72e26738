import { z } from 'zod';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape, refuse } from './decoder_config.ts';

const schema = z.looseObject({
  use_sliding_window: z.boolean().nullish(),
  sliding_window: z.int().positive().nullish(),
  max_window_layers: z.int().nonnegative().nullish(),
  layer_types: z.array(z.string()).nullish(),
});

/** Alibaba's Qwen2 and Qwen2.5: biases on q, k and v alone; a sliding window in some layers, where the configuration uses one. */
export const qwen2: Architecture = {
  modelTypes: ['qwen2'],
  shape: (config) => {
    const {
      use_sliding_window: isUsed,
      sliding_window: window,
      max_window_layers: first,
      ...raw
    } = config.read(schema);
    const isWindowed = (layer: number): boolean => {
      const type = raw.layer_types?.[layer];
      if (type === undefined) return layer >= (first ?? 28);
      if (type !== 'sliding_attention' && type !== 'full_attention') refuse(config, `a layer of type ${type}`);
      return type === 'sliding_attention';
    };
    const biases = { hasQkvBias: true, hasOutputBias: false, hasMlpBias: false };
    return decoderShape(config, biases, (layer) => (isUsed && isWindowed(layer) ? (window ?? 4_096) : 0));
  },
  program: decoderProgram,
};
