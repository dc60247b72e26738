import { paddedInner, scalesPerRow } from '../../weights/weight_format.ts';
import type { KernelSpec } from '../kernel.ts';
import { formatConstant } from '../kernel_set.ts';
import { operation } from './operation.ts';

/** `out[r, :] (+)= table[token(r), :]`, unpacked to f32; one dispatch per slice of the table. */
export const embedKernel = {
  name: 'embed',
  uses: ['weight_rows'],
  params: {
    first_output: 'u32',
    outputs: 'u32',
    quads: 'u32',
    scales_per_output: 'u32',
    out_stride: 'u32',
    vocab: 'u32',
    scale: 'f32',
    is_accumulating: 'u32',
  },
  buffers: {
    weight: { access: 'read', dtype: 'vec4u' },
    scales: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    slots: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { FORMAT: 0, WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** Adds the dispatches of `embed`, one per slice of the table. */
export const embed = operation('embed', (plan, op) => {
  const { format, inner, outputs, slices } = plan.weight(op.table);
  const { buffer, stride } = plan.buffer(op.out);
  for (const slice of slices) {
    plan.push({
      spec: embedKernel,
      specialisation: { constants: { FORMAT: formatConstant(format) } },
      params: {
        first_output: slice.firstOutput,
        outputs: slice.outputs,
        quads: paddedInner(inner) / 4,
        scales_per_output: scalesPerRow(format, inner),
        out_stride: stride,
        vocab: outputs,
        scale: op.scale ?? 1,
        is_accumulating: op.accumulate ? 1 : 0,
      },
      bindings: {
        weight: slice.data,
        scales: slice.scales ?? plan.resources.none,
        step: plan.resources.step,
        slots: plan.resources.slots,
        out: buffer,
      },
      grid: ({ rows }) => [rows, 1, 1],
      work: ({ rows }) => ({ bytes: rows * stride * 4, flops: 0 }),
    });
  }
});
