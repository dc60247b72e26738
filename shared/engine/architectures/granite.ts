import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { multipliersOf } from './decoder_multipliers.ts';

/** IBM's Granite 3: as Llama with multipliers. */
export const granite: Architecture = {
  modelTypes: ['granite'],
  shape: (config) => decoderShape(config, multipliersOf(config)),
  program: decoderProgram,
};
