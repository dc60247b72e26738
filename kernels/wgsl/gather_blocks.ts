import type { KernelSpec } from './kernel.ts';

/** Copies one layer of some blocks from the KV cache to contiguous records; with SCATTER 1 from the records to the cache. */
export const gatherBlocks = {
  name: 'gather_blocks',
  params: { layer_at: 'u32', layer_quads: 'u32', record_quads: 'u32' },
  buffers: {
    list: { access: 'read', dtype: 'u32' },
    kv: { access: 'read_write', dtype: 'vec4u' },
    staging: { access: 'read_write', dtype: 'vec4u' },
  },
  constants: { WORKGROUP_SIZE: 64, SCATTER: 0 },
} as const satisfies KernelSpec;
