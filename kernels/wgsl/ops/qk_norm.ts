import { DeviceError } from '../../device.ts';
import { normSpans } from '../../norm_spans.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Norms of q and k, in place; one workgroup per row and span. */
export const qkNormKernel = {
  name: 'qk_norm',
  uses: ['row_scale', 'mean_scale'],
  params: { stride: 'u32', q_spans: 'u32', q_width: 'u32', k_spans: 'u32', k_width: 'u32', epsilon: 'f32' },
  buffers: {
    x: { access: 'read_write', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 128 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `qk_norm`, where it is not fused into `rope_store`. @throws DeviceError when head_dim is no multiple of 4. */
export const qkNorm = operation('qk_norm', (plan, op) => {
  const { headDim, epsilon } = op;
  if (headDim % 4 !== 0)
    throw new DeviceError(`the webgpu device needs head_dim to be a multiple of 4, not ${headDim}`);
  const qkv = plan.buffer(op.qkv);
  const { qSpans, qWidth, kSpans, kWidth, vSpans } = normSpans(op);
  plan.push({
    spec: qkNormKernel,
    // Threads beyond what a short span has would only wait.
    specialisation: { constants: { WORKGROUP_SIZE: qWidth >= 512 ? 128 : 32 } },
    params: { stride: qkv.stride, q_spans: qSpans, q_width: qWidth, k_spans: kSpans, k_width: kWidth, epsilon },
    bindings: { x: qkv.buffer, weight: plan.vector(op.weight) },
    grid: ({ rows }) => [rows, qSpans + kSpans + vSpans, 1],
    work: ({ rows }) => ({ bytes: rows * (qSpans * qWidth + (kSpans + vSpans) * kWidth) * 8, flops: 0 }),
  });
});
