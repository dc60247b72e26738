import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatch of `mul`. */
export const mul = operation('mul', gatedMul);
