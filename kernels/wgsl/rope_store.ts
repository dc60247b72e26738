import type { KernelSpec } from './kernel.ts';

/** Rotates q and k in place, stores k and v, rounded, at the row's slot; one workgroup per row. */
export const ropeStore = {
  name: 'rope_store',
  params: { heads: 'u32', kv_heads: 'u32', head_dim: 'u32', stride: 'u32' },
  buffers: {
    angles: { access: 'read', dtype: 'f32' },
    step: { access: 'read', dtype: 'u32' },
    qkv: { access: 'read_write', dtype: 'f32' },
    kv: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 128, BLOCK_SIZE: 32, KV_F16: 1 },
} as const satisfies KernelSpec;
