import { kvValueBytes } from '../../kv_layout.ts';
import { planesOf } from '../../kv_planes.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Rotates q and k in place, stores k and v, rounded, at the row's slot; one workgroup per row and head. */
export const ropeStoreKernel = {
  name: 'rope_store',
  uses: ['mean_scale'],
  params: {
    heads: 'u32',
    first_value: 'u32',
    stride: 'u32',
    epsilon: 'f32',
    block_values: 'u32',
    k_at: 'u32',
    k_width: 'u32',
    v_at: 'u32',
    v_width: 'u32',
  },
  buffers: {
    angles: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    norm: { access: 'read', dtype: 'vec2f' },
    qkv: { access: 'read_write', dtype: 'vec2f' },
    kv: { access: 'read_write', dtype: 'u32' },
  },
  constants: {
    WORKGROUP_SIZE: 64,
    BLOCK_SIZE: 32,
    HEAD_DIM: 64,
    ROTARY: 64,
    PAIR_DISTANCE: 32,
    QUERY_FACTORS: 0,
    KV_F16: 1,
    HEAD_NORM: 0,
    VALUE_NORM: 0,
  },
} as const satisfies KernelSpec;

/** Planes of a layer that stores nothing. */
const noPlanes = { k: { offset: 0, tokenBytes: 0 }, v: { offset: 0, tokenBytes: 0 } };

/** Adds the dispatch of `rope_store`, with the norm of heads when one is fused. */
export const ropeStore = operation('rope_store', (plan, op, { headNorm }) => {
  const { heads, kvHeads, headDim, keys = 'stored' } = op;
  const { kv } = plan.options;
  const { k, v } = kvHeads > 0 ? planesOf(kv, op) : noPlanes;
  const layer = kv.layers[op.layer]!;
  const valueBytes = kvValueBytes(kv.dtype);
  const qkv = plan.buffer(op.qkv);
  const { angles, dim, pairDistance, hasQueryFactors } = plan.rope(op.rope);
  plan.push({
    spec: ropeStoreKernel,
    specialisation: {
      constants: {
        BLOCK_SIZE: kv.blockSize,
        HEAD_DIM: headDim,
        ROTARY: dim,
        KV_F16: kv.dtype === 'f16' ? 1 : 0,
        PAIR_DISTANCE: pairDistance,
        QUERY_FACTORS: hasQueryFactors ? 1 : 0,
        // With a fused norm, a head is split among as many threads as in qk_norm, so that sums have the same order (E2).
        ...(headNorm ? { HEAD_NORM: 1, VALUE_NORM: headNorm.hasValueNorm ? 1 : 0, WORKGROUP_SIZE: 32 } : {}),
      },
    },
    params: {
      heads,
      first_value: heads + (keys === 'computed' ? 0 : kvHeads),
      stride: qkv.stride,
      epsilon: headNorm?.epsilon ?? 0,
      block_values: layer.bytes / valueBytes,
      k_at: k.offset / valueBytes,
      k_width: k.tokenBytes / valueBytes,
      v_at: v.offset / valueBytes,
      v_width: v.tokenBytes / valueBytes,
    },
    bindings: {
      angles,
      step: plan.resources.step,
      qkv: qkv.buffer,
      kv: plan.kv(op.layer),
      norm: headNorm ? plan.vector(headNorm.weight) : plan.resources.none,
    },
    grid: ({ rows }) => [rows, heads + layer.planes.length * kvHeads, 1],
    work: ({ rows }) => ({ bytes: rows * qkv.stride * 8, flops: 0 }),
  });
});
