import type { KernelSpec } from './kernel.ts';

/** `out[r, :] = weight * x[r, :] / rms(x[r, :])`, one workgroup per row. */
export const rmsNorm = {
  name: 'rms_norm',
  uses: ['row_scale'],
  params: { inverse_hidden: 'f32', stride: 'u32', epsilon: 'f32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4f' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 128 },
} as const satisfies KernelSpec;
