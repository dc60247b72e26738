import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { optionalWindows } from './decoder_windows.ts';

/** Alibaba's Qwen2 and Qwen2.5: biases on q, k and v alone; a sliding window in some layers, where the configuration uses one. */
export const qwen2: Architecture = {
  modelTypes: ['qwen2'],
  shape: (config) => {
    const windows = optionalWindows(config);
    const biases = { hasQkvBias: true, hasOutputBias: false, hasMlpBias: false };
    return decoderShape(config, { layer: biases, windowOf: (layer) => windows[layer] ?? 0 });
  },
  program: decoderProgram,
};
