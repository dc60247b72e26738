import type { KernelSpec } from './kernel.ts';

/** Merges the partials of a row's splits in order; one workgroup per head and row. */
export const attentionMerge = {
  name: 'attention_merge',
  params: { heads: 'u32', out_stride: 'u32' },
  buffers: {
    parts: { access: 'read', dtype: 'vec4f' },
    part_stats: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 64, HEAD_DIM: 64 },
} as const satisfies KernelSpec;
