import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

/** Window that transformers uses when the key is absent; `null` means no window. */
const DEFAULT_WINDOW = 4_096;

const noBiases = { hasQkvBias: false, hasOutputBias: false, hasMlpBias: false };

/** Mistral AI's 7B, Nemo and Small, and Ministral: a sliding window in every layer, in some, or in none. */
export const mistral: Architecture = {
  modelTypes: ['mistral', 'ministral'],
  shape: (config) => {
    const window = commonWindow(config, DEFAULT_WINDOW);
    const isWindowed = windowedLayers(config, () => true);
    return decoderShape(config, { layer: noBiases, windowOf: (layer) => (isWindowed[layer] ? window : 0) });
  },
  program: decoderProgram,
};
