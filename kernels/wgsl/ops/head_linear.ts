/** Products of single heads: each head's inputs lie in one range of a row, its outputs in another. */
import assert from 'node:assert/strict';
import { DeviceError } from '../../device.ts';
import { paddedInner, scalesPerRow } from '../../weights/weight_format.ts';
import type { KernelSpec } from '../kernel.ts';
import { formatConstant } from '../kernel_set.ts';
import { operation } from './operation.ts';

/** `out[r, h, :] = x[r, h, :] · weight[h]ᵀ`; one workgroup per range of outputs, rows and head. */
export const headLinearKernel = {
  name: 'head_linear',
  uses: ['weight_rows'],
  params: {
    outputs: 'u32',
    first_head: 'u32',
    inner_quads: 'u32',
    groups: 'u32',
    scales_per_output: 'u32',
    x_stride: 'u32',
    x_head: 'u32',
    out_stride: 'u32',
    out_head: 'u32',
  },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4u' },
    scales: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
  constants: { FORMAT: 0, WORKGROUP_SIZE: 64, ROWS: 1, EACH: 1, UNROLLED: 1 },
} as const satisfies KernelSpec;

/** Rows and outputs of a thread in steps of several rows. */
const MANY = { hardware: { ROWS: 8, EACH: 4 }, software: { ROWS: 4, EACH: 2 } };
const ONE = { ROWS: 1, EACH: 1 };

/** Adds the dispatches of `head_linear`, for steps of one row and of several, one for each slice of the weight. */
export const headLinear = operation('head_linear', (plan, op) => {
  const { none, step, capabilities } = plan.resources;
  const { heads, xHead, outHead } = op;
  const [x, out] = [plan.buffer(op.x), plan.buffer(op.out)];
  const { format, inner, outputs: allOutputs, slices } = plan.weight(op.weight);
  const outputs = allOutputs / heads;
  if (xHead % 4 !== 0 || inner % 4 !== 0)
    throw new DeviceError(`the webgpu device needs heads of a multiple of 4 values, not ${xHead} and ${inner}`);
  assert(
    (heads - 1) * xHead + inner <= x.spec.width && (heads - 1) * outHead + outputs <= out.spec.width,
    `head_linear ${op.weight}: shapes differ`,
  );
  const many = MANY[capabilities.isSoftware ? 'software' : 'hardware'];
  for (const slice of slices) {
    const sliceHeads = slice.outputs / outputs;
    for (const tile of [ONE, many]) {
      plan.push({
        label: `heads ${outputs}×${inner} ${format}`,
        spec: headLinearKernel,
        specialisation: {
          constants: { ...tile, FORMAT: formatConstant(format), UNROLLED: capabilities.isSoftware ? 0 : 1 },
        },
        params: {
          outputs,
          first_head: slice.firstOutput / outputs,
          inner_quads: inner / 4,
          groups: paddedInner(inner) / 32,
          scales_per_output: scalesPerRow(format, inner),
          x_stride: x.stride,
          x_head: xHead,
          out_stride: out.stride,
          out_head: outHead,
        },
        bindings: { x: x.buffer, weight: slice.data, scales: slice.scales ?? none, step, out: out.buffer },
        grid: ({ rows }) => {
          if ((rows === 1) !== (tile === ONE)) return [0, 0, 0];
          const perWorkgroup = headLinearKernel.constants.WORKGROUP_SIZE * tile.EACH;
          return [Math.ceil(outputs / perWorkgroup), Math.ceil(rows / tile.ROWS), sliceHeads];
        },
        work: ({ rows }) => ({
          bytes: slice.data.size + (slice.scales?.size ?? 0),
          flops: 2 * rows * slice.outputs * inner,
        }),
      });
    }
  }
});
