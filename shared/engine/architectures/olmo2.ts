import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

/** Ai2's OLMo 2: norms after each branch instead of before it, and of all heads of q and of k together. */
export const olmo2: Architecture = {
  modelTypes: ['olmo2'],
  shape: (config) => decoderShape(config, { layer: { qkNorm: 'all', norms: 'after', hasMlpBias: false } }),
  program: decoderProgram,
};
