import type { KernelSpec } from './kernel.ts';

/** `out[r, :] = weight * x[r, :] / rms(x[r, :])`, one workgroup per row. x, out [rows, hidden], weight [hidden]. */
export const rmsNorm = {
  name: 'rms_norm',
  params: { rows: 'u32', hidden: 'u32', epsilon: 'f32' },
  buffers: {
    x: { access: 'read', dtype: 'f32' },
    weight: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;
