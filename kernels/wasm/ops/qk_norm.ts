import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { normSpans } from '../../norm_spans.ts';
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
    vSpans: 'u32',
    epsilon: 'f32',
  }),
  bind: (op, { buffer, weight }) => {
    const qkv = buffer(op.qkv);
    return { qkv: qkv.at, stride: qkv.stride, weight: weight(op.weight).at, ...normSpans(op), epsilon: op.epsilon };
  },
  run: (step, { params }) => {
    step.kernels.qk_norm(params, ...step.share(step.count(Control.numRows)));
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.qkv, op.qkv], batch),
});
