import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { eachHead, headColumns } from '../head_columns.ts';
import { operation, rowCost } from './operation.ts';

const ropeStoreParams = struct('RopeStoreParams', {
  qkv: 'u32',
  stride: 'u32',
  positions: 'u32',
  slots: 'u32',
  cos: 'u32',
  sin: 'u32',
  heads: 'u32',
  kvHeads: 'u32',
  keyHeads: 'u32',
  headDim: 'u32',
  rotaryDim: 'u32',
  pairDistance: 'u32',
  queryFactors: 'u32',
  kv: 'u32',
  valueOffset: 'u32',
  keyTokenBytes: 'u32',
  valueTokenBytes: 'u32',
  blockBytes: 'u32',
  blockSize: 'u32',
  isF16: 'u32',
});

/**
 * The `rope_store` operation: rotates q and k by position, then stores k and v in the KV blocks. Threads split rows, or heads
 * within a product's tasks.
 */
export const ropeStore = operation('rope_store', {
  params: ropeStoreParams,
  bind: (op, { options, regions, blockBytes, buffer, rope, planes }) => {
    const qkv = buffer(op.qkv);
    return {
      qkv: qkv.at,
      stride: qkv.stride,
      positions: regions.positions,
      slots: regions.slots,
      ...rope(op.rope),
      heads: op.heads,
      kvHeads: op.kvHeads,
      keyHeads: op.keys === 'computed' ? 0 : op.kvHeads,
      headDim: op.headDim,
      ...(op.kvHeads > 0 ? planes(op) : { kv: 0, valueOffset: 0, keyTokenBytes: 0, valueTokenBytes: 0 }),
      blockBytes,
      blockSize: options.kv.blockSize,
      isF16: options.kv.dtype === 'f16' ? 1 : 0,
    };
  },
  run: (step, { params }) => {
    step.kernels.rope_store(params, ...step.share(step.count(Control.numRows)));
  },
  follows: ({ qkv, headDim }, product) => headColumns(qkv, headDim, product),
  // A struct per head: the kernel then rotates that head of q, or rotates and stores that head of k, or stores that head of v.
  parts: (fields) => {
    const { qkv, heads, kvHeads, keyHeads, headDim, kv, valueOffset, valueTokenBytes, isF16 } = fields;
    const headBytes = headDim * (isF16 ? 2 : 4);
    return Array.from({ length: numHeads(fields) }, (_, index) => {
      const own = { ...fields, qkv: qkv + index * headDim * 4, valueOffset: 0 };
      if (index < heads) return { ...own, heads: 1, kvHeads: 0, keyHeads: 0 };
      const head = (index - heads) % kvHeads;
      const stored = { ...own, heads: 0, kvHeads: 1, queryFactors: 0, kv: kv + head * headBytes };
      if (index < heads + kvHeads) return { ...stored, keyHeads: Math.min(1, keyHeads) };
      return { ...stored, keyHeads: 0, kv: stored.kv + valueOffset, keyTokenBytes: valueTokenBytes };
    });
  },
  runColumns: (step, { params, fields }, start, end, first, last) => {
    eachHead(params, ropeStoreParams.bytes, fields.headDim, numHeads(fields), first, last, (part) => {
      step.kernels.rope_store(part, start, end);
    });
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.qkv, op.qkv], batch),
});

/** Returns the number of heads in a row of q, k and v; a layer of one plane has no v. */
function numHeads({ heads, kvHeads, valueOffset }: { heads: number; kvHeads: number; valueOffset: number }): number {
  return heads + kvHeads * (valueOffset === 0 ? 1 : 2);
}
