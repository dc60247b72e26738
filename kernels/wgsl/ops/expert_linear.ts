/**
 * Products of a mixture of experts: the kernels of linear.ts over items, each a few rows of one expert. The items are formed on the
 * device in each step (number_expert_slots.wgsl).
 */
import assert from 'node:assert/strict';
import { paddedInner, scalesPerRow } from '../../weights/weight_format.ts';
import type { Dispatch } from '../dispatch_plan.ts';
import { linearVariants, tiledGrid, vectorGrid } from '../kernel_set.ts';
import { itemsOf } from '../routing.ts';
import { vectorPipelines } from '../vector_pipelines.ts';
import { gateBounds } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatches of `expert_linear`, one per slice of the stacked experts. */
export const expertLinear = operation('expert_linear', (plan, op, { gated, permuted }) => {
  const { capabilities, device, kernels, none, routing } = plan.resources;
  const [x, out] = [plan.buffer(permuted?.x ?? op.x), plan.buffer(gated?.out ?? op.out)];
  const { format, inner, outputs: allOutputs, slices } = plan.weight(op.weight);
  const outputs = allOutputs / op.experts;
  const { perRow = 1 } = out.spec;
  assert(
    paddedInner(inner) <= x.stride && outputs <= out.spec.width * (gated ? 2 : 1),
    `expert_linear ${op.weight}: shapes differ`,
  );
  const mixture = { experts: op.experts, perToken: perRow };
  for (const slice of slices) {
    const use = { format, gate: gated?.kind, outputs, hasExperts: true, isPermuted: permuted !== undefined };
    const { byColumns, many } = linearVariants(capabilities, use, false);
    const gridY = device.limits.maxComputeWorkgroupsPerDimension;
    const params = {
      outputs,
      first_output: 0,
      quads: paddedInner(inner) / 4,
      scales_per_output: scalesPerRow(format, inner),
      x_stride: x.stride,
      out_stride: out.stride,
      has_bias: op.bias === undefined ? 0 : 1,
      is_accumulating: 0,
      count_at: 0,
      grid_y: gridY,
      half_outputs: outputs / 2,
      inverse_norm_width: 1,
      epsilon: 0,
      scale: 1,
      items_at: plan.routing.itemsAt,
      first_expert: slice.firstOutput / outputs,
      num_experts: slice.outputs / outputs,
      order_at: plan.routing.orderAt,
      ...gateBounds(gated),
    };
    const buffers = {
      x: x.buffer,
      weight: slice.data,
      scales: slice.scales ?? none,
      norm: none,
      bias: plan.optionalVector(op.bias),
      step: routing,
      out: out.buffer,
    };
    const [tiled] = many;
    assert(tiled, 'every set has a kernel for many rows');
    plan.add(tiled.spec, params, async (uniform): Promise<Dispatch> => {
      const vectorGroup = kernels.bind(byColumns[0]?.[1].spec ?? tiled.spec, uniform, buffers);
      const manyGroup = kernels.bind(tiled.spec, uniform, buffers);
      const manyPipeline = await kernels.pipeline(tiled.spec, tiled.specialisation);
      const pipelines = await vectorPipelines(kernels, byColumns, outputs);
      return {
        label: `experts ${outputs}×${inner} ${format}${gated ? ' gated' : ''}`,
        work: ({ rows }) => ({
          bytes: ((slice.data.size + (slice.scales?.size ?? 0)) * Math.min(rows * perRow, op.experts)) / op.experts,
          flops: (2 * slice.outputs * inner * rows * perRow) / op.experts,
        }),
        launch: ({ rows }) => {
          if (rows === 0) return undefined;
          const { atOnce, isTiled, most } = itemsOf(rows, mixture, plan.routing);
          if (isTiled || byColumns.length === 0) {
            const [gridX] = tiledGrid(1, outputs, tiled.tile);
            return { pipeline: manyPipeline, grid: [gridX, most, 1], bindGroup: manyGroup };
          }
          const { pipeline, numGroups } = pipelines.get(atOnce)!;
          const [, y, z] = vectorGrid(1, 1, numGroups, gridY);
          return { pipeline, grid: [most, y, z], bindGroup: vectorGroup };
        },
      };
    });
  }
});
