import { gatedMul } from './gated.ts';

/** The `silu_mul` operation: silu(gate) · up. Threads split rows or columns. */
export const siluMul = gatedMul('silu_mul');
