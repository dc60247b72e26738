/** What a step does at one place of its list, and what every place can bind. */
import { paddedInner } from '../weight_format.ts';
import type { GpuWeight } from './gpu_weights.ts';
import type { KernelCache } from './kernel.ts';
import type { Capabilities } from './kernel_set.ts';
import type { AttendedTokens, StepCounts } from './step_state.ts';

export type Grid = readonly [x: number, y: number, z: number];

/** What a step does at one place of the list. */
interface Launch {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: Grid;
}

/** Work of one launch, for the benchmark: bytes that must be read, multiply-adds times two. */
interface Work {
  readonly bytes: number;
  readonly flops: number;
}

export interface Dispatch {
  /** Kernel and what it is for. */
  readonly label: string;
  /** Undefined when the step has nothing for it. */
  readonly launch: (counts: StepCounts) => Launch | undefined;
  readonly work: (counts: StepCounts, attended: AttendedTokens) => Work;
}

export interface Resources {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  readonly capabilities: Capabilities;
  readonly weights: ReadonlyMap<string, GpuWeight>;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  /** One a layer. */
  readonly kv: readonly GPUBuffer[];
  readonly angles: GPUBuffer;
  readonly step: GPUBuffer;
  readonly parts: GPUBuffer;
  readonly partStats: GPUBuffer;
  readonly lists: GPUBuffer;
  readonly stats: GPUBuffer;
  readonly results: GPUBuffer;
  /** Bound where a kernel does not look: read-only, and one to write. */
  readonly none: GPUBuffer;
  readonly params: GPUBuffer;
}

/** Values from one row to the next: whole groups, so that products read no tails. The padding stays zero. */
export function rowStride(width: number): number {
  return paddedInner(width);
}
