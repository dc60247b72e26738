import { MAX_CANDIDATES } from '../../device.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `candidates` operation: the best logits of each sample and the parts of its log-sum-exp. Threads split samples. */
export const candidates = operation('candidates', {
  params: struct('CandidatesParams', {
    logits: 'u32',
    stride: 'u32',
    vocab: 'u32',
    counts: 'u32',
    ids: 'u32',
    values: 'u32',
    stats: 'u32',
    maxCandidates: 'u32',
  }),
  bind: (op, { regions, buffer }) => {
    const logits = buffer(op.logits);
    return {
      logits: logits.at,
      stride: logits.stride,
      vocab: op.vocab,
      counts: regions.sampleCounts,
      ids: regions.candidateIds,
      values: regions.candidateValues,
      stats: regions.sampleStats,
      maxCandidates: MAX_CANDIDATES,
    };
  },
  run: (step, { params }) => {
    step.kernels.candidates(params, ...step.share(step.count(Control.numSamples)));
  },
  // Logits are read twice: for the best ones, then for the sum.
  cost: (op, loaded, batch) => rowCost(loaded, [op.logits, op.logits], batch),
});
