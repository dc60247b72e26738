import { DeviceError } from '../../device.ts';
import { latentPlane } from '../../kv_planes.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `latent_store` operation: norms and stores latents and rotated keys, and rotates queries. Threads split rows. */
export const latentStore = operation('latent_store', {
  params: struct('LatentStoreParams', {
    latent: 'u32',
    latentStride: 'u32',
    q: 'u32',
    qStride: 'u32',
    out: 'u32',
    outStride: 'u32',
    weight: 'u32',
    positions: 'u32',
    slots: 'u32',
    cos: 'u32',
    sin: 'u32',
    heads: 'u32',
    qHead: 'u32',
    rank: 'u32',
    rotary: 'u32',
    isInterleaved: 'u32',
    kv: 'u32',
    tokenBytes: 'u32',
    blockBytes: 'u32',
    blockSize: 'u32',
    isF16: 'u32',
    epsilon: 'f32',
  }),
  bind: (op, { options: { kv }, regions, blockBytes, buffer, weight, rope, planesAt }) => {
    const { heads, rank, rotary, qHead, epsilon } = op;
    const [latent, q, out, { rotaryDim, cos, sin }] = [buffer(op.latent), buffer(op.q), buffer(op.out), rope(op.rope)];
    if (rotaryDim !== rotary || rotary % 4 !== 0)
      throw new DeviceError(`latent attention rotates multiples of 4 values by a table of as many, not ${rotary}`);
    const plane = latentPlane(kv, op);
    return {
      latent: latent.at,
      latentStride: latent.stride,
      q: q.at,
      qStride: q.stride,
      out: out.at,
      outStride: out.stride,
      weight: weight(op.weight).at,
      positions: regions.positions,
      slots: regions.slots,
      cos,
      sin,
      heads,
      qHead,
      rank,
      rotary,
      isInterleaved: op.isInterleaved ? 1 : 0,
      kv: planesAt(op.layer) + plane.offset,
      tokenBytes: plane.tokenBytes,
      blockBytes,
      blockSize: kv.blockSize,
      isF16: kv.dtype === 'f16' ? 1 : 0,
      epsilon,
    };
  },
  run: (step, { params }) => {
    step.kernels.latent_store(params, ...step.share(step.count(Control.numRows)), step.scratch);
  },
  cost: (op, loaded, batch) => rowCost(loaded, [op.latent, op.q, op.out], batch),
  scratchBytes: ({ rotary }) => rotary * 4,
});
