import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatch of `silu_mul`. */
export const siluMul = operation('silu_mul', gatedMul);
