import type { KernelSpec } from './kernel.ts';

/** Causal attention of each row over its sequence's block table, one workgroup per head and row. */
export const pagedAttention = {
  name: 'paged_attention',
  params: {
    heads: 'u32',
    kv_heads: 'u32',
    qkv_width: 'u32',
    table_width: 'u32',
    block_words: 'u32',
    plane_words: 'u32',
    layer: 'u32',
    scale: 'f32',
  },
  buffers: {
    qkv: { access: 'read', dtype: 'f32' },
    kv: { access: 'read', dtype: 'u32' },
    table: { access: 'read', dtype: 'u32' },
    rows: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64, BLOCK_SIZE: 32, HEAD_DIM: 64, KV_F16: 1 },
} as const satisfies KernelSpec;
