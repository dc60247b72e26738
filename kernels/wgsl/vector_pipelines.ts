/** Pipelines of a product for few rows. */
import type { KernelCache } from './kernel.ts';
import type { VectorVariant } from './kernel_set.ts';

interface VectorPipeline {
  readonly pipeline: GPUComputePipeline;
  /** Workgroups that all outputs take. */
  readonly numGroups: number;
}

/** Compiles the variants of a product with `outputs` outputs. Returns them by the number of columns that a workgroup computes. */
export async function vectorPipelines(
  kernels: KernelCache,
  byColumns: readonly (readonly [columns: number, variant: VectorVariant])[],
  outputs: number,
): Promise<ReadonlyMap<number, VectorPipeline>> {
  const compiled = byColumns.map(async ([columns, { spec, specialisation, outputsPerWorkgroup }]) => {
    const pipeline = await kernels.pipeline(spec, specialisation);
    return [columns, { pipeline, numGroups: Math.ceil(outputs / outputsPerWorkgroup) }] as const;
  });
  return new Map(await Promise.all(compiled));
}
