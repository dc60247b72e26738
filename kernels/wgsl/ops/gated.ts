/** The dispatch that all gates share, for gates that are not fused into a product. */
import type { Gate } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';
import type { KernelSpec } from '../kernel.ts';
import { gateConstant } from '../kernel_set.ts';

/** `out[r, i] = gate(gates[r, i]) * ups[r, first_up + i]`, one thread per output. */
export const gatedMulKernel = {
  name: 'gated_mul',
  uses: ['gate'],
  params: {
    inner: 'u32',
    gate_stride: 'u32',
    up_stride: 'u32',
    first_up: 'u32',
    out_stride: 'u32',
    alpha: 'f32',
    limit: 'f32',
  },
  buffers: {
    gates: { access: 'read', dtype: 'f32' },
    ups: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64, GATED: 1 },
} as const satisfies KernelSpec;

/** Returns the uniform fields of a gate: those of `clamped_swiglu`; zeros for other gates, and for none. */
export function gateBounds(gate: Gate | undefined): { readonly alpha: number; readonly limit: number } {
  return gate?.kind === 'clamped_swiglu' ? { alpha: gate.alpha, limit: gate.limit } : { alpha: 0, limit: 0 };
}

/** Adds the dispatch of a gate: reads [rows, inner] of gates and of ups, writes [rows, inner]. */
export function gatedMul(plan: DispatchPlan, op: Gate): void {
  const [gateUp, out] = [plan.buffer(op.gateUp), plan.buffer(op.out)];
  const ups = op.ups === undefined ? gateUp : plan.buffer(op.ups);
  const firstUp = op.ups === undefined ? op.inner : (op.firstUp ?? 0);
  const { perRow = 1 } = gateUp.spec;
  plan.push({
    label: op.kind,
    spec: gatedMulKernel,
    specialisation: { constants: { GATED: gateConstant(op.kind) } },
    params: {
      inner: op.inner,
      gate_stride: gateUp.stride,
      up_stride: ups.stride,
      first_up: firstUp,
      out_stride: out.stride,
      ...gateBounds(op),
    },
    bindings: { gates: gateUp.buffer, ups: ups.buffer, out: out.buffer },
    grid: ({ rows }) => [Math.ceil(op.inner / gatedMulKernel.constants.WORKGROUP_SIZE), rows * perRow, 1],
    work: ({ rows }) => ({ bytes: rows * perRow * op.inner * 12, flops: 0 }),
  });
}
