import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `sigmoid_mul` operation, in place. Threads split rows or columns. */
export const sigmoidMul = operation('sigmoid_mul', {
  params: struct('SigmoidMulParams', {
    x: 'u32',
    xStride: 'u32',
    gate: 'u32',
    gateStride: 'u32',
    width: 'u32',
    isPerRow: 'u32',
  }),
  bind: (op, { buffer }) => {
    const [x, gate] = [buffer(op.x), buffer(op.gate)];
    return {
      x: x.at,
      xStride: x.stride,
      gate: gate.at + 4 * op.first,
      gateStride: gate.stride,
      width: op.width,
      isPerRow: op.isPerRow ? 1 : 0,
      count: x.count,
    };
  },
  run: (step, { params, fields }) => {
    step.kernels.sigmoid_mul(params, ...step.shareTable(step.count(fields.count), fields.width));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.x, op.x, ...(op.isPerRow ? [] : [op.x])], batch),
});
