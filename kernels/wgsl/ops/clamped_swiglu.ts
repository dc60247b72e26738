import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatch of `clamped_swiglu`. */
export const clampedSwiglu = operation('clamped_swiglu', gatedMul);
