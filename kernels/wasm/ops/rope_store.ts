import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `rope_store` operation: rotates q and k by position, then stores k and v in the KV blocks. Threads split rows. */
export const ropeStore = operation('rope_store', {
  params: struct('RopeStoreParams', {
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
  }),
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
  cost: (op, loaded, batch) => rowCost(loaded, [op.qkv, op.qkv], batch),
});
