import { DeviceError, MAX_CANDIDATES } from '../../device.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Logits that one workgroup of {@link candidatesKernel} reads. */
const CANDIDATE_TILE = 2_048;
/** Maximum tiles of a row: {@link candidatesMergeKernel} has one thread per tile. */
const MAX_CANDIDATE_TILES = 256;

/** Finds the best logits of each tile, and the tile's part of the log-sum-exp; one workgroup per tile and sample. */
export const candidatesKernel = {
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

/** Merges the lists of a sample's tiles into its results; one workgroup per sample. */
export const candidatesMergeKernel = {
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

/** Returns the number of tiles in a row of logits. @throws DeviceError for a vocabulary larger than one workgroup can merge. */
export function candidateTiles(vocab: number): number {
  const tiles = Math.ceil(vocab / CANDIDATE_TILE);
  if (tiles > MAX_CANDIDATE_TILES) {
    throw new DeviceError(
      `the webgpu device takes vocabularies up to ${MAX_CANDIDATE_TILES * CANDIDATE_TILE}, not ${vocab}`,
    );
  }
  return tiles;
}

/** Adds the dispatches of `candidates`: the best logits of each tile, then the merge of a sample's tiles. */
export const candidates = operation('candidates', (plan, op) => {
  const { step, lists, stats, results } = plan.resources;
  const logits = plan.buffer(op.logits);
  const tiles = candidateTiles(op.vocab);
  const params = { vocab: op.vocab, stride: logits.stride, tiles };
  plan.push({
    spec: candidatesKernel,
    params,
    bindings: { logits: logits.buffer, step, lists, stats },
    grid: ({ listed, samples }) => [listed > 0 ? tiles : 0, samples, 1],
    work: ({ listed }) => ({ bytes: listed * op.vocab * 4, flops: 0 }),
  });
  plan.push({
    spec: candidatesMergeKernel,
    params,
    bindings: { lists, stats, logits: logits.buffer, step, results },
    grid: ({ listed, samples }) => [listed > 0 ? samples : 0, 1, 1],
    work: () => ({ bytes: 0, flops: 0 }),
  });
});
