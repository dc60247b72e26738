import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { normSpans } from '../../norm_spans.ts';
import { eachHead, headColumns } from '../head_columns.ts';
import { operation, rowCost } from './operation.ts';

const qkNormParams = struct('QkNormParams', {
  qkv: 'u32',
  stride: 'u32',
  weight: 'u32',
  qSpans: 'u32',
  qWidth: 'u32',
  kSpans: 'u32',
  kWidth: 'u32',
  vSpans: 'u32',
  epsilon: 'f32',
});

/** The `qk_norm` operation: normalises q and k in place, per head or as a whole. Threads split rows, or heads within a product's tasks. */
export const qkNorm = operation('qk_norm', {
  params: qkNormParams,
  bind: (op, { buffer, weight }) => {
    const qkv = buffer(op.qkv);
    return { qkv: qkv.at, stride: qkv.stride, weight: weight(op.weight).at, ...normSpans(op), epsilon: op.epsilon };
  },
  run: (step, { params }) => {
    step.kernels.qk_norm(params, ...step.share(step.count(Control.numRows)));
  },
  follows: ({ qkv, span, headDim }, product) => (span === 'head' ? headColumns(qkv, headDim, product) : undefined),
  // A struct per head: the kernel then normalises that head alone.
  parts: (fields) => {
    const { qkv, qSpans, kSpans, vSpans, qWidth } = fields;
    return Array.from({ length: qSpans + kSpans + vSpans }, (_, head) => ({
      ...fields,
      qkv: qkv + head * qWidth * 4,
      qSpans: head < qSpans ? 1 : 0,
      kSpans: head >= qSpans && head < qSpans + kSpans ? 1 : 0,
      vSpans: head >= qSpans + kSpans ? 1 : 0,
    }));
  },
  runColumns: (step, { params, fields: { qWidth, qSpans, kSpans, vSpans } }, start, end, first, last) => {
    eachHead(params, qkNormParams.bytes, qWidth, qSpans + kSpans + vSpans, first, last, (part) => {
      step.kernels.qk_norm(part, start, end);
    });
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.qkv, op.qkv], batch),
});
