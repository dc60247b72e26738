import type { KernelSpec } from './kernel.ts';

/** `out[r, :] = table[token(r), :]`, unpacked to f32; one dispatch per slice of the table. */
export const embed = {
  name: 'embed',
  uses: ['weight_rows'],
  params: { first_output: 'u32', outputs: 'u32', quads: 'u32', scales_per_output: 'u32', out_stride: 'u32' },
  buffers: {
    weight: { access: 'read', dtype: 'vec4u' },
    scales: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { FORMAT: 0, WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;
