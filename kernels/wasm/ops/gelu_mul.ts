import { gatedMul } from './gated.ts';

export const geluMul = gatedMul('gelu_mul');
