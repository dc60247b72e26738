import { gatedMul } from './gated.ts';
import { operation } from './operation.ts';

export const geluMul = operation('gelu_mul', gatedMul);
