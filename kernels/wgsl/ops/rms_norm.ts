import type { KernelSpec } from '../kernel.ts';
import { normsOnTheWay } from '../kernel_set.ts';
import { operation } from './operation.ts';

/** `out[r, :] (+)= weight * x[r, :] / rms(x[r, :])`, then all of it times a scalar where there is one; one workgroup per row. */
export const rmsNormKernel = {
  name: 'rms_norm',
  uses: ['row_scale', 'mean_scale'],
  params: { inverse_hidden: 'f32', stride: 'u32', epsilon: 'f32', is_accumulating: 'u32', has_scalar: 'u32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4f' },
    scalar: { access: 'read', dtype: 'f32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 128 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `rms_norm`. Steps with one row leave it out when the next product applies the norm itself. */
export const rmsNorm = operation('rms_norm', (plan, op, { isNormOfNext }) => {
  const [x, out] = [plan.buffer(op.x), plan.buffer(op.out)];
  const count = out.spec.rows;
  const isLeftOut = isNormOfNext && normsOnTheWay(plan.resources.capabilities.set);
  plan.push({
    spec: rmsNormKernel,
    params: {
      inverse_hidden: 1 / x.spec.width,
      stride: x.stride,
      epsilon: op.epsilon,
      is_accumulating: op.accumulate ? 1 : 0,
      has_scalar: op.scalar === undefined ? 0 : 1,
    },
    bindings: {
      x: x.buffer,
      weight: plan.vector(op.weight),
      out: out.buffer,
      scalar: op.scalar === undefined ? plan.resources.none : plan.vector(op.scalar),
    },
    grid: (counts) => [isLeftOut && counts[count] === 1 ? 0 : counts[count], 1, 1],
    work: (counts) => ({ bytes: counts[count] * x.stride * 8, flops: 0 }),
  });
});
