import type { KernelSpec } from './kernel.ts';

/** `out[r, o] (+)= x[r, :] · weight[o, :] (+ bias[o])`, one workgroup per output and row. */
export const matvec = {
  name: 'matvec',
  params: {
    outputs: 'u32',
    inner: 'u32',
    x_width: 'u32',
    out_width: 'u32',
    has_bias: 'u32',
    is_accumulating: 'u32',
    grid_x: 'u32',
  },
  buffers: {
    x: { access: 'read', dtype: 'f32' },
    weight: { access: 'read', dtype: 'f32' },
    bias: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;
