import type { KernelSpec } from './kernel.ts';

/** Rotates q and k in place, stores k and v, rounded, at the row's slot; one workgroup per row and head. */
export const ropeStore = {
  name: 'rope_store',
  params: { heads: 'u32', kv_heads: 'u32', stride: 'u32' },
  buffers: {
    angles: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    qkv: { access: 'read_write', dtype: 'vec2f' },
    kv: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 64, BLOCK_SIZE: 32, HEAD_DIM: 64, KV_F16: 1 },
} as const satisfies KernelSpec;
