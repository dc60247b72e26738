import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `qk_norm` operation: normalises q and k in place, per head or as a whole. Threads split rows. */
export const qkNorm = operation('qk_norm', {
  params: struct('QkNormParams', {
    qkv: 'u32',
    stride: 'u32',
    weight: 'u32',
    qSpans: 'u32',
    qWidth: 'u32',
    kSpans: 'u32',
    kWidth: 'u32',
    epsilon: 'f32',
  }),
  bind: (op, { buffer, weight }) => {
    const qkv = buffer(op.qkv);
    const { heads, kvHeads, headDim } = op;
    const spans =
      op.span === 'head'
        ? { qSpans: heads, qWidth: headDim, kSpans: kvHeads, kWidth: headDim }
        : { qSpans: 1, qWidth: heads * headDim, kSpans: 1, kWidth: kvHeads * headDim };
    return { qkv: qkv.at, stride: qkv.stride, weight: weight(op.weight).at, ...spans, epsilon: op.epsilon };
  },
  run: (step, { params }) => {
    step.kernels.qk_norm(params, ...step.share(step.count(Control.numRows)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.qkv, op.qkv], batch),
});
