import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `gated_norm` operation, in place. Threads split the spans of rows. */
export const gatedNorm = operation('gated_norm', {
  params: struct('GatedNormParams', {
    x: 'u32',
    xStride: 'u32',
    gate: 'u32',
    gateStride: 'u32',
    weight: 'u32',
    weightStride: 'u32',
    spans: 'u32',
    width: 'u32',
    epsilon: 'f32',
    isGateFirst: 'u32',
  }),
  bind: (op, { buffer, weight }) => {
    const [x, gate, { at, spec }] = [buffer(op.x), buffer(op.gate), weight(op.weight)];
    const { spans, width, epsilon } = op;
    return {
      x: x.at,
      xStride: x.stride,
      gate: gate.at + 4 * op.first,
      gateStride: gate.stride,
      spans,
      width,
      epsilon,
      weight: at,
      weightStride: spec.outputs > width ? 4 * width : 0,
      isGateFirst: op.isGateFirst ? 1 : 0,
    };
  },
  run: (step, { params, fields: { spans } }) => {
    step.kernels.gated_norm(params, ...step.share(step.count(Control.numRows) * spans));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.x, op.x, op.x], batch),
});
