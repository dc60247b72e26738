/** The dispatch of one product: a kernel for few rows by their number, one with the norm before it, one for many. */
import { paddedInner, scalesPerRow } from '../weight_format.ts';
import type { Dispatch, Resources } from './dispatch.ts';
import type { GpuWeight, WeightSlice } from './gpu_weights.ts';
import type { KernelSpec } from './kernel.ts';
import { columnsFor, linearVariants, manyGrid, vectorGrid, type LinearVariant } from './kernel_set.ts';
import { matmulSubgroupMatrix } from './linear.ts';
import { Header } from './step_state.ts';

interface LinearUse {
  readonly weight: GpuWeight;
  readonly slice: WeightSlice;
  readonly isGated: boolean;
  readonly count: 'rows' | 'samples';
  /** What the weight does not say. */
  readonly params: Readonly<Record<string, number>>;
  readonly bindings: Readonly<Record<string, GPUBuffer>>;
  /** What is normalised on the way in when there is one row. */
  readonly normX: GPUBuffer | undefined;
  /** Takes a uniform, returns its offset. */
  readonly pack: (spec: KernelSpec, params: Readonly<Record<string, number>>) => number;
}

export async function linearDispatch(
  { device, kernels, capabilities, params: uniforms }: Resources,
  { weight, slice, isGated, count, params, bindings, normX, pack }: LinearUse,
): Promise<Dispatch> {
  const { format, inner, outputs } = weight;
  const { byColumns, normed, many, outputsPerWorkgroup } = linearVariants(
    capabilities,
    { format, isGated, outputs: slice.outputs },
    normX !== undefined,
  );
  const numGroups = Math.ceil(slice.outputs / outputsPerWorkgroup);
  const gridY = Math.min(numGroups, device.limits.maxComputeWorkgroupsPerDimension);
  const offset = pack(many.spec, {
    ...params,
    outputs: slice.outputs,
    first_output: slice.firstOutput,
    quads: paddedInner(inner) / 4,
    scales_per_output: scalesPerRow(format, inner),
    count_at: Header[count],
    grid_y: gridY,
    half_outputs: outputs / 2,
  });
  const buffers = { ...bindings, weight: slice.data };
  const pipelineOf = ({ spec, specialisation }: LinearVariant): Promise<GPUComputePipeline> =>
    kernels.pipeline(spec, specialisation);
  // The kernels share one contract, but a layout is per kernel: bind groups for those with few rows and those with many.
  const vectorSpec = byColumns[0]![1].spec;
  const vectorGroup = kernels.bind(vectorSpec, uniforms, offset, buffers);
  const manyGroup = kernels.bind(many.spec, uniforms, offset, buffers);
  const normedGroup = normX && kernels.bind(vectorSpec, uniforms, offset, { ...buffers, x: normX });
  const [columns, manyPipeline, normedPipeline] = await Promise.all([
    Promise.all(byColumns.map(async ([number, variant]) => [number, await pipelineOf(variant)] as const)),
    pipelineOf(many),
    normed && pipelineOf(normed),
  ]);
  const pipelines = new Map(columns);
  const kind = many.spec === matmulSubgroupMatrix ? 'linear (matrix)' : 'linear';
  return {
    label: `${kind} ${outputs}×${inner} ${format}${isGated ? ' gated' : ''}${normX ? ' after norm' : ''}`,
    work: (counts) => ({
      bytes: slice.data.size + (slice.scales?.size ?? 0),
      flops: 2 * slice.outputs * inner * counts[count],
    }),
    launch: (counts) => {
      const numRows = counts[count];
      if (numRows === 0) return undefined;
      if (numRows === 1 && normedPipeline && normedGroup) {
        return { pipeline: normedPipeline, grid: vectorGrid(1, 1, numGroups, gridY), bindGroup: normedGroup };
      }
      const perGroup = columnsFor(numRows, capabilities.isSoftware);
      if (perGroup === undefined) {
        return { pipeline: manyPipeline, grid: manyGrid(numRows, slice.outputs), bindGroup: manyGroup };
      }
      const pipeline = pipelines.get(perGroup)!;
      return { pipeline, grid: vectorGrid(numRows, perGroup, numGroups, gridY), bindGroup: vectorGroup };
    },
  };
}
