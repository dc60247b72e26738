/**
 * Products. Each has kernels for few rows (one for each number of columns), one for a single row that also applies the norm before the
 * product, and kernels for many rows.
 */
import assert from 'node:assert/strict';
import type { Gate, RowKind } from '../../program.ts';
import { paddedInner, scalesPerRow } from '../../weights/weight_format.ts';
import type { Dispatch, DispatchPlan } from '../dispatch_plan.ts';
import type { GpuWeight, WeightSlice } from '../gpu_weights.ts';
import { columnsFor, linearVariants, tiledGrid, vectorGrid, type LinearVariant } from '../kernel_set.ts';
import { matmulSubgroupMatrix } from '../linear_kernels.ts';
import { Header } from '../step_state.ts';
import { vectorPipelines } from '../vector_pipelines.ts';
import { gateBounds } from './gated.ts';
import { operation } from './operation.ts';

/** Adds the dispatches of `linear`, one per slice of the weight; each includes a fused norm and gate. */
export const linear = operation('linear', (plan, op, { norm, gated }) => {
  const { none, step } = plan.resources;
  const [x, out] = [plan.buffer(op.x), plan.buffer(gated ? gated.out : op.out)];
  const normX = norm && plan.buffer(norm.x);
  const weight = plan.weight(op.weight);
  const { inner, outputs } = weight;
  assert(paddedInner(inner) <= x.stride, `linear ${op.weight}: inputs differ`);
  assert((gated ? outputs / 2 : outputs) <= out.spec.width, `linear ${op.weight}: outputs differ`);
  for (const slice of weight.slices) {
    addSlice(plan, {
      weight,
      slice,
      gate: gated?.kind,
      count: x.spec.rows,
      params: {
        x_stride: x.stride,
        out_stride: out.stride,
        has_bias: op.bias === undefined ? 0 : 1,
        is_accumulating: op.accumulate ? 1 : 0,
        scale: op.scale ?? 1,
        inverse_norm_width: 1 / (normX?.spec.width ?? 1),
        epsilon: norm?.epsilon ?? 0,
        ...gateBounds(gated),
      },
      bindings: {
        x: x.buffer,
        scales: slice.scales ?? none,
        bias: plan.optionalVector(op.bias),
        norm: norm ? plan.vector(norm.weight) : none,
        step,
        out: out.buffer,
      },
      normX: normX?.buffer,
    });
  }
});

const noExperts = { items_at: 0, first_expert: 0, num_experts: 0, order_at: 0 };

interface SliceUse {
  readonly weight: GpuWeight;
  readonly slice: WeightSlice;
  readonly gate: Gate['kind'] | undefined;
  readonly count: RowKind;
  /** Uniform fields that do not follow from the weight and its slice. */
  readonly params: Readonly<Record<string, number>>;
  readonly bindings: Readonly<Record<string, GPUBuffer>>;
  /** Input of the norm that the kernel applies itself when there is one row; undefined when no norm is fused. */
  readonly normX: GPUBuffer | undefined;
}

function addSlice(plan: DispatchPlan, { weight, slice, gate, count, params, bindings, normX }: SliceUse): void {
  const { device, kernels, capabilities } = plan.resources;
  const { format, inner, outputs } = weight;
  const { byColumns, normed, many } = linearVariants(
    capabilities,
    { format, gate, outputs: slice.outputs },
    normX !== undefined,
  );
  const gridY = device.limits.maxComputeWorkgroupsPerDimension;
  const values = {
    ...params,
    outputs: slice.outputs,
    first_output: slice.firstOutput,
    quads: paddedInner(inner) / 4,
    scales_per_output: scalesPerRow(format, inner),
    count_at: Header[count],
    grid_y: gridY,
    half_outputs: outputs / 2,
    ...noExperts,
  };
  const buffers = { ...bindings, weight: slice.data };
  const pipelineOf = ({ spec, specialisation }: LinearVariant): Promise<GPUComputePipeline> =>
    kernels.pipeline(spec, specialisation);
  const manySpec = many[0]!.spec;
  const kind = manySpec === matmulSubgroupMatrix ? 'linear (matrix)' : 'linear';
  plan.add(manySpec, values, async (uniform): Promise<Dispatch> => {
    // The kernels share one contract, but a layout is per kernel: bind groups for those with few rows and those with many.
    const vectorSpec = byColumns[0]?.[1].spec ?? manySpec;
    const vectorGroup = kernels.bind(vectorSpec, uniform, buffers);
    const manyGroup = kernels.bind(manySpec, uniform, buffers);
    const normedGroup = normX && kernels.bind(vectorSpec, uniform, { ...buffers, x: normX });
    const [pipelines, tiles, normedPipeline] = await Promise.all([
      vectorPipelines(kernels, byColumns, slice.outputs),
      Promise.all(many.map(async (variant) => ({ ...variant, pipeline: await pipelineOf(variant) }))),
      normed && pipelineOf(normed),
    ]);
    return {
      label: `${kind} ${outputs}×${inner} ${format}${gate ? ' gated' : ''}${normX ? ' after norm' : ''}`,
      work: (counts) => ({
        bytes: slice.data.size + (slice.scales?.size ?? 0),
        flops: 2 * slice.outputs * inner * counts[count],
      }),
      launch: (counts) => {
        const numRows = counts[count];
        if (numRows === 0) return undefined;
        if (numRows === 1 && normed && normedPipeline && normedGroup) {
          const numGroups = Math.ceil(slice.outputs / normed.outputsPerWorkgroup);
          return { pipeline: normedPipeline, grid: vectorGrid(1, 1, numGroups, gridY), bindGroup: normedGroup };
        }
        const perGroup = byColumns.length > 0 ? columnsFor(numRows, capabilities) : undefined;
        if (perGroup === undefined) {
          const { pipeline, tile } = tiles.find(({ upTo }) => numRows <= upTo)!;
          return { pipeline, grid: tiledGrid(numRows, slice.outputs, tile), bindGroup: manyGroup };
        }
        const { pipeline, numGroups } = pipelines.get(perGroup)!;
        return { pipeline, grid: vectorGrid(numRows, perGroup, numGroups, gridY), bindGroup: vectorGroup };
      },
    };
  });
}
