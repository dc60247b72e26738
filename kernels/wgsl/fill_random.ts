import type { KernelSpec } from './kernel.ts';

/** Fills a weight with random values on the device, for benchmarks and probes. */
export const fillRandom = {
  name: 'fill_random',
  params: { words: 'u32', seed: 'u32', grid_x: 'u32', amplitude: 'f32' },
  buffers: { words: { access: 'read_write', dtype: 'u32' } },
  constants: { WORKGROUP_SIZE: 256, KIND: 0 },
} as const satisfies KernelSpec;
