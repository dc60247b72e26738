import { DeviceError } from '../../device.ts';
import { sampleFields } from '../../sampler_slot.ts';
import type { KernelSpec } from '../kernel.ts';
import type { GridCounts } from '../step_state.ts';
import { wordsStruct } from '../words_struct.ts';
import { operation } from './operation.ts';

/** Ids that one workgroup goes over. */
const TILE = 2_048;
/** Maximum tiles of a row: {@link sampleChooseKernel} has one thread per tile. */
const MAX_TILES = 256;
/** Words of a tile, of the heads and of the bins in a sample's state: sampling.wgsl. */
const [TILE_WORDS, HEAD_WORDS, BIN_WORDS] = [8, 40, 3 * 8_192];

const sampling = {
  uses: ['sampling', 'wide'],
  text: wordsStruct('SampleParams', sampleFields, { logits: 'u32' }),
  params: { vocab: 'u32', stride: 'u32', tiles: 'u32', sample_words: 'u32', round: 'u32' },
  buffers: {
    logits: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    exp2_table: { access: 'read', dtype: 'u32' },
    pages: { access: 'read_write', dtype: 'u32' },
    slots: { access: 'read_write', dtype: 'u32' },
    results: { access: 'read_write', dtype: 'u32' },
    state: { access: 'read_write', dtype: 'atomic' },
  },
  constants: { WORKGROUP_SIZE: 256, UNROLLED: 1 },
} as const;

/** Runs one round of sampling over each row of logits; one workgroup per tile and sample. */
export const sampleTilesKernel = {
  name: 'sample_tiles',
  ...sampling,
  uses: [...sampling.uses, 'sample_head'],
} as const satisfies KernelSpec;

/** Chooses each sample's token, as sampling.ts defines it; one workgroup per sample. */
export const sampleChooseKernel = { name: 'sample_choose', ...sampling } as const satisfies KernelSpec;

/** Rounds in the order in which sample_head.wgsl numbers them, each with a test of whether a step with these counts needs the round. */
const rounds: readonly (readonly [name: string, has: (counts: GridCounts) => boolean])[] = [
  ['best', ({ sampled }) => sampled > 0],
  ['weigh', ({ weighed }) => weighed > 0],
  ['top_k 1', ({ topK }) => topK > 0],
  ['top_k 2', ({ topK }) => topK > 0],
  ['top_p 1', ({ topP }) => topP > 0],
  ['top_p 2', ({ topP }) => topP > 0],
  ['kept', ({ topK, topP }) => topK + topP > 0],
];

/**
 * Returns the bytes of the state that the rounds of a step pass on to each other. @throws DeviceError for a vocabulary larger than one
 * workgroup can choose from.
 */
export function sampleStateBytes(vocab: number, maxSamples: number): number {
  if (vocab > MAX_TILES * TILE)
    throw new DeviceError(`the webgpu device takes vocabularies up to ${MAX_TILES * TILE}, not ${vocab}`);
  return 4 * maxSamples * sampleWords(vocab);
}

function sampleWords(vocab: number): number {
  return Math.ceil(vocab / TILE) * TILE_WORDS + HEAD_WORDS + BIN_WORDS;
}

/**
 * Adds the dispatches of `sample`: the rounds over all tiles, then the choice. A step leaves out rounds that none of its samples
 * needs.
 */
export const sample = operation('sample', (plan, op) => {
  const { step, exp2Table, samplerPages, slots, results, sampleState, capabilities } = plan.resources;
  const specialisation = { constants: { UNROLLED: capabilities.isSoftware ? 0 : 1 } };
  const logits = plan.buffer(op.logits);
  const tiles = Math.ceil(op.vocab / TILE);
  const params = { vocab: op.vocab, stride: logits.stride, tiles, sample_words: sampleWords(op.vocab) };
  const bindings = {
    logits: logits.buffer,
    step,
    exp2_table: exp2Table,
    pages: samplerPages,
    slots,
    results,
    state: sampleState,
  };
  for (const [round, [name, has]] of rounds.entries()) {
    plan.push({
      label: `sample (${name})`,
      spec: sampleTilesKernel,
      specialisation,
      params: { ...params, round },
      bindings,
      grid: (counts) => [has(counts) ? tiles : 0, counts.samples, 1],
      work: ({ sampled }) => ({ bytes: sampled * op.vocab * 4, flops: 0 }),
    });
  }
  plan.push({
    label: 'sample (choose)',
    spec: sampleChooseKernel,
    specialisation,
    params: { ...params, round: 0 },
    bindings,
    grid: ({ sampled, samples }) => [sampled > 0 ? samples : 0, 1, 1],
    work: () => ({ bytes: 0, flops: 0 }),
  });
});
