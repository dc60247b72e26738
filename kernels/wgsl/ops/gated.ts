/** The dispatch that `silu_mul` and `gelu_mul` share, for gates that are not fused into a product. */
import type { Gate } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';
import type { KernelSpec } from '../kernel.ts';
import { gateConstant } from '../kernel_set.ts';

/** `out[r, i] = gate(gate_up[r, i]) * gate_up[r, inner + i]`, one thread per output. */
export const gatedMulKernel = {
  name: 'gated_mul',
  uses: ['gate'],
  params: { inner: 'u32', gate_up_stride: 'u32', out_stride: 'u32' },
  buffers: {
    gate_up: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64, GATED: 1 },
} as const satisfies KernelSpec;

/** Adds the dispatch of a gate: reads [rows, 2·inner], writes [rows, inner]. */
export function gatedMul(plan: DispatchPlan, op: Gate): void {
  const [gateUp, out] = [plan.buffer(op.gateUp), plan.buffer(op.out)];
  const { perRow = 1 } = gateUp.spec;
  plan.push({
    label: op.kind,
    spec: gatedMulKernel,
    specialisation: { constants: { GATED: gateConstant(op.kind) } },
    params: { inner: op.inner, gate_up_stride: gateUp.stride, out_stride: out.stride },
    bindings: { gate_up: gateUp.buffer, out: out.buffer },
    grid: ({ rows }) => [Math.ceil(op.inner / gatedMulKernel.constants.WORKGROUP_SIZE), rows * perRow, 1],
    work: ({ rows }) => ({ bytes: rows * perRow * op.inner * 12, flops: 0 }),
  });
}
