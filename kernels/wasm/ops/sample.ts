import { sampleFields } from '../../sampler_slot.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** Bytes of the 2,048 bins, u64 each, into which weights are counted by one of their digits (sample_cuts.as.ts). */
const BINS_BYTES = 2_048 * 8;

/** Struct of one sample's parameters, as the kernels read it. */
export const samplerSlot = struct('SamplerSlot', sampleFields);

/** Bytes of scratch that a thread needs to sample from a row of `vocab` logits. */
export function scratchBytes(vocab: number): number {
  return 3 * 4 * (vocab + 8) + BINS_BYTES;
}

/** The `sample` operation: samples a token per sample. Threads claim one sample at a time. */
export const sample = operation('sample', {
  params: struct('SampleParams', {
    logits: 'u32',
    stride: 'u32',
    vocab: 'u32',
    samplerSlots: 'u32',
    samplerSlotBytes: 'u32',
    tokens: 'u32',
    slots: 'u32',
    table: 'u32',
  }),
  bind: (op, { regions, buffer }) => {
    const logits = buffer(op.logits);
    return {
      logits: logits.at,
      stride: logits.stride,
      vocab: op.vocab,
      samplerSlots: regions.samplerSlots,
      samplerSlotBytes: samplerSlot.bytes,
      tokens: regions.sampledTokens,
      slots: regions.slotTokens,
      table: regions.exp2Table,
    };
  },
  // Samples differ widely in cost, so each free thread claims the next one.
  run: (step, { params, index }) => {
    const count = step.count(Control.numSamples);
    for (let sample = step.nextTask(index); sample < count; sample = step.nextTask(index)) {
      step.kernels.sample(params, sample, sample + 1, step.scratch);
    }
  },
  scratchBytes: ({ vocab }) => scratchBytes(vocab),
  // Logits are read twice: for the highest, then for the weights.
  cost: (op, loaded, batch) => rowCost(loaded, [op.logits, op.logits], batch),
});
