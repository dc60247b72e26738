import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatch of `gelu_mul`. */
export const geluMul = operation('gelu_mul', gatedMul);
