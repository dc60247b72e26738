import { gatedMul, gateKernel } from './gated.ts';
import { operation } from './operation.ts';

/** `out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i]`, one thread per output. */
export const siluMulKernel = gateKernel('silu_mul');

export const siluMul = operation('silu_mul', (plan, op) => {
  gatedMul(plan, op, siluMulKernel);
});
