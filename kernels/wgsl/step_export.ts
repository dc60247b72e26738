/**
 * Blocks that a step fills, out of the device while it computes: behind the layers of a range a kernel gathers them into records side by
 * side, which are copied to a buffer that the host maps when that submit is done. Buffers are made once, as many as the steps that run at
 * a time.
 */
import type { LayerRange, StepExport } from '../device.ts';
import { BlockGather } from './block_gather.ts';
import type { GpuMemory } from './gpu_memory.ts';
import type { KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Of the blocks that one step exports so; others leave when it is done. */
const EXPORT_BYTES = 64 << 20;

interface Range extends LayerRange {
  /** Of its bytes, in a payload. */
  readonly at: number;
  readonly bytes: number;
}

/** Of a device that exports in those ranges: blocks a step, and all that is made for it. */
export interface ExportPlan {
  readonly ranges: readonly Range[];
  readonly numBlocks: number;
  readonly bytes: number;
}

/** `numFilled`: blocks that a step can fill. */
export function planExport(
  ranges: readonly LayerRange[],
  layerBytes: readonly number[],
  numFilled: number,
  numSteps: number,
): ExportPlan {
  const bytesOf = (layers: readonly number[]): number => layers.reduce((sum, bytes) => sum + bytes, 0);
  const blockBytes = bytesOf(layerBytes);
  const numBlocks = ranges.length > 0 ? Math.min(numFilled, Math.floor(EXPORT_BYTES / blockBytes)) : 0;
  const placed = ranges.map(({ firstLayer, numLayers }) => ({
    ...{ firstLayer, numLayers, at: bytesOf(layerBytes.slice(0, firstLayer)) },
    bytes: bytesOf(layerBytes.slice(firstLayer, firstLayer + numLayers)),
  }));
  const widest = Math.max(0, ...placed.map(({ bytes }) => bytes));
  return { ranges: placed, numBlocks, bytes: numBlocks * (numSteps * blockBytes + widest) };
}

interface Parts {
  readonly plan: ExportPlan;
  readonly gather: BlockGather;
  /** By step in flight, by range. */
  readonly downloads: readonly (readonly GPUBuffer[])[];
}

export class StepExporter {
  readonly #parts: Parts;

  private constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** `kv` has a buffer per layer. @throws DeviceError when the device is full. */
  static async create(
    device: GPUDevice,
    memory: GpuMemory,
    kernels: KernelCache,
    kv: readonly GPUBuffer[],
    layerBytes: readonly number[],
    plan: ExportPlan,
    numSteps: number,
  ): Promise<StepExporter> {
    const { ranges, numBlocks } = plan;
    const staged = ranges.flatMap(({ firstLayer, numLayers, bytes: stagedBytes }) => {
      let next = 0;
      return layerBytes.slice(firstLayer, firstLayer + numLayers).map((own) => {
        const at = next;
        next += own;
        return { at, stagedBytes };
      });
    });
    const gather = await BlockGather.create({
      ...{ label: 'export', device, memory, kernels, kv, layerBytes, staged, numBlocks },
    });
    const downloads: GPUBuffer[][] = [];
    for (let step = 0; step < numSteps; step++) {
      const ofStep: GPUBuffer[] = [];
      for (const { bytes } of ranges) {
        const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
        ofStep.push(await memory.allocate('transfer', 'exported range', numBlocks * bytes, usage));
      }
      downloads.push(ofStep);
    }
    return new StepExporter({ plan, gather, downloads });
  }

  get numBlocks(): number {
    return this.#parts.plan.numBlocks;
  }

  get ranges(): readonly LayerRange[] {
    return this.#parts.plan.ranges;
  }

  /** Before the step's first submit. */
  begin({ blocks }: StepExport): void {
    this.#parts.gather.choose(blocks);
  }

  /** Behind the layers of that range. `step`: which of those that run at a time. */
  encode(encoder: GPUCommandEncoder, index: number, numBlocks: number, step: number): void {
    const { plan, gather, downloads } = this.#parts;
    const range = plan.ranges[index]!;
    gather.encode(encoder, 'gather', range, numBlocks);
    encoder.copyBufferToBuffer(gather.staging, 0, downloads[step]![index]!, 0, numBlocks * range.bytes);
  }

  /** When everything is submitted: resolves when the last range has been told. */
  async arrived({ blocks, outs, onRange }: StepExport, step: number): Promise<void> {
    const { plan, downloads } = this.#parts;
    const mapped = plan.ranges.map(({ bytes }, i) => {
      const mapping = polled(downloads[step]![i]!.mapAsync(GPUMapMode.READ, 0, blocks.length * bytes));
      // A lost device rejects them all; the first is the error.
      mapping.catch(() => undefined);
      return mapping;
    });
    for (const [i, { at, bytes }] of plan.ranges.entries()) {
      await mapped[i];
      const download = downloads[step]![i]!;
      const all = new Uint8Array(download.getMappedRange(0, blocks.length * bytes));
      outs.forEach((out, b) => {
        out.set(all.subarray(b * bytes, (b + 1) * bytes), at);
      });
      download.unmap();
      onRange(i);
    }
  }
}
