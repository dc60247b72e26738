import { DeviceError } from '../../device.ts';
import { kvValueBytes } from '../../kv_layout.ts';
import { latentPlane } from '../../kv_planes.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Norms and stores latents and rotated keys, and rotates queries; two workgroups per row. */
export const latentStoreKernel = {
  name: 'latent_store',
  uses: ['mean_scale'],
  params: {
    heads: 'u32',
    q_head: 'u32',
    latent_stride: 'u32',
    q_stride: 'u32',
    out_stride: 'u32',
    block_values: 'u32',
    plane_at: 'u32',
    token_values: 'u32',
    epsilon: 'f32',
  },
  buffers: {
    latent: { access: 'read', dtype: 'vec4f' },
    q: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4f' },
    angles: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec2f' },
    kv: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 128, BLOCK_SIZE: 32, RANK: 512, ROTARY: 64, KV_F16: 1, INTERLEAVED: 1 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `latent_store`. @throws DeviceError for sizes that are no multiples of 4. */
export const latentStore = operation('latent_store', (plan, op) => {
  const { heads, rank, rotary, qHead } = op;
  const { kv } = plan.options;
  const { angles, dim } = plan.rope(op.rope);
  if (dim !== rotary || rotary % 4 !== 0 || rank % 4 !== 0 || qHead % 4 !== 0)
    throw new DeviceError(
      `latent attention needs multiples of 4 values and a rotary table of as many, not ${rank}, ${rotary} and ${qHead}`,
    );
  const plane = latentPlane(kv, op);
  const [latent, q, out] = [plan.buffer(op.latent), plan.buffer(op.q), plan.buffer(op.out)];
  const valueBytes = kvValueBytes(kv.dtype);
  plan.push({
    spec: latentStoreKernel,
    specialisation: {
      constants: {
        BLOCK_SIZE: kv.blockSize,
        RANK: rank,
        ROTARY: rotary,
        KV_F16: kv.dtype === 'f16' ? 1 : 0,
        INTERLEAVED: op.isInterleaved ? 1 : 0,
      },
    },
    params: {
      heads,
      q_head: qHead,
      latent_stride: latent.stride,
      q_stride: q.stride,
      out_stride: out.stride,
      block_values: kv.layers[op.layer]!.bytes / valueBytes,
      plane_at: plane.offset / valueBytes,
      token_values: plane.tokenBytes / valueBytes,
      epsilon: op.epsilon,
    },
    bindings: {
      latent: latent.buffer,
      q: q.buffer,
      weight: plan.vector(op.weight),
      angles,
      step: plan.resources.step,
      out: out.buffer,
      kv: plan.kv(op.layer),
    },
    grid: ({ rows }) => [rows, 2, 1],
    work: ({ rows }) => ({ bytes: rows * (rank + rotary + 2 * heads * rotary) * 4, flops: 0 }),
  });
});
