import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** `x[r, i] = x[r, i] · sigmoid(gate)`, one thread per value. */
export const sigmoidMulKernel = {
  name: 'sigmoid_mul',
  params: { width: 'u32', stride: 'u32', gate_stride: 'u32', first: 'u32', is_per_row: 'u32' },
  buffers: {
    gate: { access: 'read', dtype: 'f32' },
    x: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `sigmoid_mul`, in place. */
export const sigmoidMul = operation('sigmoid_mul', (plan, op) => {
  const [x, gate] = [plan.buffer(op.x), plan.buffer(op.gate)];
  const { width, first, isPerRow } = op;
  plan.push({
    spec: sigmoidMulKernel,
    params: { width, stride: x.stride, gate_stride: gate.stride, first, is_per_row: isPerRow ? 1 : 0 },
    bindings: { gate: gate.buffer, x: x.buffer },
    grid: (counts) => [Math.ceil(width / sigmoidMulKernel.constants.WORKGROUP_SIZE), counts[x.spec.rows], 1],
    work: (counts) => ({ bytes: counts[x.spec.rows] * width * 12, flops: 0 }),
  });
});
