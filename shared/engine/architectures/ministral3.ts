import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

/** The text part of Mistral AI's Ministral 3: as Mistral without a window, with queries that grow with their position. */
export const ministral3: Architecture = {
  modelTypes: ['ministral3'],
  shape: (config) => {
    const window = commonWindow(config);
    const isWindowed = windowedLayers(config, () => true);
    return decoderShape(config, {
      layer: { hasQkvBias: false, hasOutputBias: false, hasMlpBias: false },
      windowOf: (layer) => (isWindowed[layer] ? window : 0),
      theta: 1_000_000,
      hasQueryScale: true,
    });
  },
  program: decoderProgram,
};
