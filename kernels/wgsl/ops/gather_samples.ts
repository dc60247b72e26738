import assert from 'node:assert/strict';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** `out[s, :] = x[row of sample s, :]`, one workgroup per sample. */
export const gatherSamplesKernel = {
  name: 'gather_samples',
  params: { stride: 'u32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `gather_samples`. */
export const gatherSamples = operation('gather_samples', (plan, op) => {
  const [x, out] = [plan.buffer(op.x), plan.buffer(op.out)];
  assert(x.stride === out.stride, `gather ${op.x}: widths differ`);
  plan.push({
    spec: gatherSamplesKernel,
    params: { stride: x.stride },
    bindings: { x: x.buffer, step: plan.resources.step, out: out.buffer },
    grid: ({ samples }) => [samples, 1, 1],
    work: ({ samples }) => ({ bytes: samples * x.stride * 8, flops: 0 }),
  });
});
