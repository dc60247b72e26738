import type { KernelSpec } from './kernel.ts';

/** Flash attention over block tables; one workgroup per work item and KV head, all query heads of that head in it. */
export const pagedAttention = {
  name: 'paged_attention',
  params: {
    kv_heads: 'u32',
    qkv_stride: 'u32',
    out_stride: 'u32',
    items_at: 'u32',
    scale: 'f32',
    window: 'u32',
  },
  buffers: {
    qkv: { access: 'read', dtype: 'vec4f' },
    kv: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
    parts: { access: 'read_write', dtype: 'vec4f' },
    part_stats: { access: 'read_write', dtype: 'vec2f' },
  },
  constants: {
    WORKGROUP_SIZE: 128,
    BLOCK_SIZE: 32,
    HEAD_DIM: 64,
    GROUP: 1,
    TILE_ROWS: 1,
    QUERY_BLOCK: 1,
    TOKENS: 32,
    SPLIT: 256,
    KV_F16: 1,
    HAS_WINDOW: 0,
    UNROLLED: 1,
  },
} as const satisfies KernelSpec;
