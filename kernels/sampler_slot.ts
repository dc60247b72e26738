/** Sampler slots: the parameters of each sample of a step as kernels read them, four bytes per field. */
import assert from 'node:assert/strict';
import type { DeviceSampleParams } from './device.ts';
import { cutoffOf } from './sampling.ts';

/**
 * Fields of a sampler slot in their order, 4 bytes each. The field of an absent sample, page or mask is 0, and so is the mantissa of a
 * greedy sample.
 */
export const sampleFields = {
  isSampled: 'u32',
  slot: 'u32',
  mantissa: 'u32',
  shift: 'u32',
  cutoff: 'u32',
  minWeight: 'u32',
  topK: 'u32',
  topP: 'u32',
  randomHigh: 'u32',
  randomLow: 'u32',
  bias: 'u32',
  counts: 'u32',
  allowed: 'u32',
  hasPenalties: 'u32',
  aboveMantissa: 'u32',
  aboveShift: 'u32',
  belowMantissa: 'u32',
  belowShift: 'u32',
  presence: 'i32',
  frequency: 'i32',
  maxCount: 'u32',
} as const;

/** Parameters of one sample as kernels read them, one number per field of {@link sampleFields}. */
export type SamplerSlot = Readonly<Record<keyof typeof sampleFields, number>>;

const nothing = Object.fromEntries(Object.keys(sampleFields).map((field) => [field, 0])) as SamplerSlot;

/**
 * Returns the sampler slot of a sample; all fields are 0 without a sample. `addresses` are the positions of its pages and mask on
 * the device, 0 for none.
 */
export function samplerSlotOf(
  sample: DeviceSampleParams | undefined,
  addresses: Pick<SamplerSlot, 'bias' | 'counts' | 'allowed'>,
): SamplerSlot {
  if (!sample) return nothing;
  const { slot, log2Scale, minWeight, topK, topP, random, penalties } = sample;
  const repetition = penalties?.repetition;
  return {
    isSampled: 1,
    slot,
    mantissa: log2Scale?.mantissa ?? 0,
    shift: log2Scale?.shift ?? 0,
    cutoff: log2Scale ? cutoffOf(log2Scale) : 0,
    minWeight,
    topK,
    topP,
    randomHigh: random[0],
    randomLow: random[1],
    bias: addresses.bias,
    counts: addresses.counts,
    allowed: addresses.allowed,
    hasPenalties: penalties ? 1 : 0,
    aboveMantissa: repetition?.above.mantissa ?? 0,
    aboveShift: repetition?.above.shift ?? 0,
    belowMantissa: repetition?.below.mantissa ?? 0,
    belowShift: repetition?.below.shift ?? 0,
    presence: penalties?.presence ?? 0,
    frequency: penalties?.frequency ?? 0,
    maxCount: penalties?.maxCount ?? 0,
  };
}

/** Returns the words of a mask that cover the vocabulary. @throws AssertionError when the mask has too few words. */
export function maskOf(allowed: Uint32Array, vocab: number): Uint32Array {
  const numWords = Math.ceil(vocab / 32);
  assert(allowed.length >= numWords, `a mask of ${vocab} tokens has ${numWords} words`);
  return allowed.subarray(0, numWords);
}
