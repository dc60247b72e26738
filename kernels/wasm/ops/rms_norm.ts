import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `rms_norm` operation. Threads split rows. */
export const rmsNorm = operation('rms_norm', {
  params: struct('RmsNormParams', {
    x: 'u32',
    xStride: 'u32',
    weight: 'u32',
    out: 'u32',
    outStride: 'u32',
    width: 'u32',
    epsilon: 'f32',
    isAccumulating: 'u32',
    scalar: 'u32',
  }),
  bind: (op, { buffer, weight }) => {
    const [x, out] = [buffer(op.x), buffer(op.out)];
    return {
      x: x.at,
      xStride: x.stride,
      weight: weight(op.weight).at,
      out: out.at,
      outStride: out.stride,
      width: x.width,
      epsilon: op.epsilon,
      isAccumulating: op.accumulate ? 1 : 0,
      scalar: op.scalar === undefined ? 0 : weight(op.scalar).at,
      count: out.count,
    };
  },
  run: (step, { params, fields }) => {
    step.kernels.rms_norm(params, ...step.share(step.count(fields.count)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.x, op.out], batch),
});
