import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

export const siluMul = operation('silu_mul', gatedMul);
