/** What gates have in common when no product does them by itself. */
import type { Gate } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';
import type { KernelSpec } from '../kernel.ts';

const WORKGROUP_SIZE = 64;

export function gateKernel(name: Gate['kind']): KernelSpec {
  return {
    name,
    uses: ['gate'],
    params: { inner: 'u32', gate_up_stride: 'u32', out_stride: 'u32' },
    buffers: {
      gate_up: { access: 'read', dtype: 'f32' },
      out: { access: 'read_write', dtype: 'f32' },
    },
    constants: { WORKGROUP_SIZE },
  };
}

export function gatedMul(plan: DispatchPlan, op: Gate, spec: KernelSpec): void {
  const [gateUp, out] = [plan.buffer(op.gateUp), plan.buffer(op.out)];
  plan.push({
    spec,
    params: { inner: op.inner, gate_up_stride: gateUp.stride, out_stride: out.stride },
    bindings: { gate_up: gateUp.buffer, out: out.buffer },
    grid: ({ rows }) => [Math.ceil(op.inner / WORKGROUP_SIZE), rows, 1],
    work: ({ rows }) => ({ bytes: rows * op.inner * 12, flops: 0 }),
  });
}
