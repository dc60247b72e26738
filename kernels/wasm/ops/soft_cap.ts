import { LANES } from '../panels.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `soft_cap` operation: x = cap · tanh(x / cap), in place. Threads split rows or columns. */
export const softCap = operation('soft_cap', {
  params: struct('SoftCapParams', { x: 'u32', stride: 'u32', width: 'u32', cap: 'f32' }),
  bind: (op, { buffer }) => {
    const x = buffer(op.x);
    return { x: x.at, stride: x.stride, width: x.width, cap: op.cap, count: x.count };
  },
  run: (step, { params, fields }) => {
    step.kernels.soft_cap(params, ...step.shareTable(step.count(fields.count), fields.width));
  },
  follows: ({ x }, { out }) => (x === out ? { unit: LANES, apart: 0 } : undefined),
  runColumns: (step, { params, fields: { width } }, start, end, first, last) => {
    step.kernels.soft_cap(params, start, end, first, Math.min(width, last));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.x, op.x], batch),
});
