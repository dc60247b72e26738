import { gatedMul, gateKernel } from './gated.ts';
import { operation } from './operation.ts';

/** `out[r, i] = gelu(gate_up[r, i]) * gate_up[r, inner + i]`, one thread per output. */
export const geluMulKernel = gateKernel('gelu_mul');

export const geluMul = operation('gelu_mul', (plan, op) => {
  gatedMul(plan, op, geluMulKernel);
});
