import { gatedMul } from './gated.ts';

/** The `mul` operation: gate · up. Threads split rows or columns. */
export const mul = gatedMul('mul');
