import { gatedMul } from './gated.ts';

/** The `gelu_mul` operation: gelu(gate) · up. Threads split rows or columns. */
export const geluMul = gatedMul('gelu_mul');
