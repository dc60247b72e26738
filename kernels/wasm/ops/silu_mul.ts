import { gatedMul } from './gated.ts';

export const siluMul = gatedMul('silu_mul');
