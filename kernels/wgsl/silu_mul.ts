import type { KernelSpec } from './kernel.ts';

/** `out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i]`, one thread per output. */
export const siluMul = {
  name: 'silu_mul',
  params: { inner: 'u32', gate_up_stride: 'u32', out_stride: 'u32' },
  buffers: {
    gate_up: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;
