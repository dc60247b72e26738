import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** `x[r, i] = cap · tanh(x[r, i] / cap)`, one thread per vector. */
export const softCapKernel = {
  name: 'soft_cap',
  uses: ['capped'],
  params: { stride: 'u32', cap: 'f32' },
  buffers: { x: { access: 'read_write', dtype: 'vec4f' } },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `soft_cap`, in place. */
export const softCap = operation('soft_cap', (plan, op) => {
  const { buffer, spec, stride } = plan.buffer(op.x);
  plan.push({
    spec: softCapKernel,
    params: { stride, cap: op.cap },
    bindings: { x: buffer },
    grid: (counts) => [Math.ceil(stride / 4 / softCapKernel.constants.WORKGROUP_SIZE), counts[spec.rows], 1],
    work: (counts) => ({ bytes: counts[spec.rows] * stride * 8, flops: 0 }),
  });
});
