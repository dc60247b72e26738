/** The merge of a row's splits, for every kind of attention. */
import type { KernelSpec } from './kernel.ts';
import type { DispatchPlan } from './dispatch_plan.ts';

/** Merges the partials of a row's splits in order; one workgroup per head and row. */
export const attentionMergeKernel = {
  name: 'attention_merge',
  params: { heads: 'u32', out_stride: 'u32' },
  buffers: {
    parts: { access: 'read', dtype: 'vec4f' },
    part_stats: { access: 'read', dtype: 'vec2f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
    sinks: { access: 'read', dtype: 'f32' },
  },
  constants: { WORKGROUP_SIZE: 64, HEAD_DIM: 64, HAS_SINKS: 0 },
} as const satisfies KernelSpec;

/** Adds the merge of the rows that were split. `width`: values of a head's output; `sinks`: a score per head, where the layer has them. */
export function mergeSplits(
  plan: DispatchPlan,
  {
    heads,
    width,
    out,
    sinks,
  }: { readonly heads: number; readonly width: number; readonly out: string; readonly sinks?: string | undefined },
): void {
  const { parts, partStats, step } = plan.resources;
  const { buffer, stride } = plan.buffer(out);
  plan.push({
    spec: attentionMergeKernel,
    specialisation: { constants: { HEAD_DIM: width, HAS_SINKS: sinks === undefined ? 0 : 1 } },
    params: { heads, out_stride: stride },
    bindings: { parts, part_stats: partStats, step, out: buffer, sinks: plan.optionalVector(sinks) },
    grid: ({ merges }) => [heads, merges, 1],
    work: () => ({ bytes: 0, flops: 0 }),
  });
}
