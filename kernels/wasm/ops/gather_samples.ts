import assert from 'node:assert/strict';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `gather_samples` operation: copies the rows that are sampled together. Threads split samples. */
export const gatherSamples = operation('gather_samples', {
  params: struct('GatherParams', { x: 'u32', sampleRows: 'u32', out: 'u32', rowBytes: 'u32' }),
  bind: (op, { regions, buffer }) => {
    const [x, out] = [buffer(op.x), buffer(op.out)];
    assert(x.stride === out.stride, `gather ${op.x}: widths differ`);
    return { x: x.at, sampleRows: regions.sampleRows, out: out.at, rowBytes: x.stride };
  },
  run: (step, { params }) => {
    step.kernels.gather(params, ...step.share(step.count(Control.numSamples)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.out, op.out], batch),
});
