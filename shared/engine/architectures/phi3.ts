import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow } from './decoder_windows.ts';

/** Microsoft's Phi-3, Phi-3.5 and Phi-4: fused projections, some with a window in every layer, with longrope, with heads rotated in part. */
export const phi3: Architecture = {
  modelTypes: ['phi3'],
  shape: (config) => {
    const window = commonWindow(config);
    const biases = { hasQkvBias: false, hasOutputBias: false, hasMlpBias: false };
    return decoderShape(config, { layer: biases, windowOf: () => window });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { fused: 'all' }),
};
