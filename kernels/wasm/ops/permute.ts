import assert from 'node:assert/strict';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `permute` operation: copies rows into the order of their experts. Threads split expert slots. */
export const permute = operation('permute', {
  params: struct('PermuteParams', { x: 'u32', out: 'u32', rowBytes: 'u32', order: 'u32' }),
  bind: (op, { buffer, regions, experts }) => {
    const [x, out] = [buffer(op.x), buffer(op.out)];
    assert(x.stride === out.stride, `permute ${op.x}: widths differ`);
    const order = regions.routing + 4 * (experts(op.routes) + 1);
    return { x: x.at, out: out.at, rowBytes: x.stride, order, perRow: out.perRow };
  },
  run: (step, { params, fields }) => {
    step.kernels.permute(params, ...step.share(step.count(Control.numRows) * fields.perRow));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.out, op.out], batch),
});
