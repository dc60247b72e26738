import type { KernelSpec } from './kernel.ts';

/** `out[s, :] = x[row of sample s, :]`, one workgroup per sample. */
export const gatherSamples = {
  name: 'gather_samples',
  params: { stride: 'u32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;
