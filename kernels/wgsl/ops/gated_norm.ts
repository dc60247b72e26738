import { DeviceError } from '../../device.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Norms of spans with their gates, in place; one workgroup per row and span. */
export const gatedNormKernel = {
  name: 'gated_norm',
  uses: ['row_scale', 'mean_scale', 'gate'],
  params: {
    stride: 'u32',
    gate_stride: 'u32',
    first: 'u32',
    width: 'u32',
    weight_stride: 'u32',
    is_gate_first: 'u32',
    epsilon: 'f32',
  },
  buffers: {
    gate: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4f' },
    x: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { GATED: 1, WORKGROUP_SIZE: 128 },
} as const satisfies KernelSpec;

/** Adds the dispatch of `gated_norm`. @throws DeviceError for widths that are no multiples of 4. */
export const gatedNorm = operation('gated_norm', (plan, op) => {
  const [x, gate] = [plan.buffer(op.x), plan.buffer(op.gate)];
  const { spans, width, first, epsilon } = op;
  if (width % 4 !== 0 || first % 4 !== 0)
    throw new DeviceError(`the webgpu device needs norms of 4, 8, 12 ... values, not of ${width} gated from ${first}`);
  plan.push({
    spec: gatedNormKernel,
    // Threads beyond what a short span has would only wait.
    specialisation: { constants: { WORKGROUP_SIZE: width >= 512 ? 128 : 32 } },
    params: {
      stride: x.stride,
      gate_stride: gate.stride,
      first,
      width,
      epsilon,
      weight_stride: plan.weight(op.weight).outputs > width ? width : 0,
      is_gate_first: op.isGateFirst ? 1 : 0,
    },
    bindings: { gate: gate.buffer, weight: plan.vector(op.weight), x: x.buffer },
    grid: ({ rows }) => [rows, spans, 1],
    work: ({ rows }) => ({ bytes: rows * spans * width * 12, flops: 0 }),
  });
});
