import { MAX_CANDIDATES } from '../device.ts';
import type { KernelSpec } from './kernel.ts';

/** Logits that one workgroup of {@link candidates} reads. */
export const CANDIDATE_TILE = 2_048;
/** {@link candidatesMerge} has a thread for each tile of a row. */
export const MAX_CANDIDATE_TILES = 256;

/** Of each tile of logits the best, and its part of the log-sum-exp; one workgroup per tile and sample. */
export const candidates = {
  name: 'candidates',
  uses: ['best_of'],
  params: { vocab: 'u32', stride: 'u32', tiles: 'u32' },
  buffers: {
    logits: { access: 'read', dtype: 'f32' },
    step: { access: 'read', dtype: 'u32' },
    lists: { access: 'read_write', dtype: 'vec2u' },
    stats: { access: 'read_write', dtype: 'vec2f' },
  },
  constants: { WORKGROUP_SIZE: 256, MAX_CANDIDATES },
} as const satisfies KernelSpec;

/** The tiles' lists of a sample into its results; one workgroup per sample. */
export const candidatesMerge = {
  name: 'candidates_merge',
  uses: ['best_of'],
  params: { vocab: 'u32', stride: 'u32', tiles: 'u32' },
  buffers: {
    lists: { access: 'read', dtype: 'vec2u' },
    stats: { access: 'read', dtype: 'vec2f' },
    logits: { access: 'read', dtype: 'f32' },
    step: { access: 'read', dtype: 'u32' },
    results: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 256, MAX_CANDIDATES },
} as const satisfies KernelSpec;
