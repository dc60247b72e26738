import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

/** Meta's Llama 2 and 3, and what was trained in its form. */
export const llama: Architecture = {
  modelTypes: ['llama'],
  shape: (config) => decoderShape(config),
  program: decoderProgram,
};
