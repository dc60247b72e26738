import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { optionalWindows } from './decoder_windows.ts';

/** Alibaba's Qwen3: as Qwen2 with norms of each head's q and k instead of biases. */
export const qwen3: Architecture = {
  modelTypes: ['qwen3'],
  shape: (config) => {
    const windows = optionalWindows(config);
    return decoderShape(config, {
      layer: { qkNorm: 'head', hasMlpBias: false },
      windowOf: (layer) => windows[layer] ?? 0,
    });
  },
  program: decoderProgram,
};
