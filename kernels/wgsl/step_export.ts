/**
 * Copies the blocks that a step fills out of the device while the step computes. After the layers of a frame, a kernel gathers them
 * into records side by side, which are copied to a buffer that the host maps when that submit is done. Buffers are made once, one set
 * for each step in flight.
 */
import type { StepExport } from '../device.ts';
import type { KvFrame, KvLayout } from '../kv_layout.ts';
import { BlockGather } from './block_gather.ts';
import type { GpuMemory } from './gpu_memory.ts';
import type { KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Maximum bytes of the blocks that one step exports while it runs; further blocks are exported after the step. */
const EXPORT_BYTES = 64 << 20;

/**
 * Number of blocks that a step can export while it runs (0 when the layout has no frames), and the bytes of all buffers made for the
 * export.
 */
export interface ExportPlan {
  readonly layout: KvLayout;
  readonly numBlocks: number;
  readonly bytes: number;
}

/** Plans the export for steps that fill at most `numFilled` blocks each, with `numSteps` steps in flight. */
export function planExport(layout: KvLayout, numFilled: number, numSteps: number): ExportPlan {
  const { frames, blockBytes } = layout;
  const numBlocks = frames.length > 0 ? Math.min(numFilled, Math.floor(EXPORT_BYTES / blockBytes)) : 0;
  const widest = Math.max(0, ...frames.map(({ rawBytes }) => rawBytes));
  return { layout, numBlocks, bytes: numBlocks * (numSteps * blockBytes + widest) };
}

interface Resources {
  readonly plan: ExportPlan;
  readonly gather: BlockGather;
  /** Mappable buffers, by step in flight, then by frame. */
  readonly downloads: readonly (readonly GPUBuffer[])[];
}

/** Copies blocks out of the device while the step that fills them runs, one frame at a time. */
export class StepExporter {
  readonly #parts: Resources;

  private constructor(parts: Resources) {
    this.#parts = parts;
  }

  /** Makes the pipelines and buffers of an export. `kv` has one buffer per layer. @throws DeviceError when the device is full. */
  static async create(
    device: GPUDevice,
    memory: GpuMemory,
    kernels: KernelCache,
    kv: readonly GPUBuffer[],
    plan: ExportPlan,
    numSteps: number,
  ): Promise<StepExporter> {
    const { layout, numBlocks } = plan;
    const layerBytes = layout.layers.map(({ bytes }) => bytes);
    const staged = layout.frames.flatMap(({ firstLayer, numLayers, offset: start, rawBytes: stagedBytes }) =>
      layout.layers
        .slice(firstLayer, firstLayer + numLayers)
        .map(({ offset }) => ({ at: offset - start, stagedBytes })),
    );
    const gather = await BlockGather.create({
      label: 'export',
      device,
      memory,
      kernels,
      kv,
      layerBytes,
      staged,
      numBlocks,
    });
    const downloads: GPUBuffer[][] = [];
    for (let step = 0; step < numSteps; step++) {
      const ofStep: GPUBuffer[] = [];
      for (const { rawBytes } of layout.frames) {
        const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
        ofStep.push(await memory.allocate('transfer', 'exported range', numBlocks * rawBytes, usage));
      }
      downloads.push(ofStep);
    }
    return new StepExporter({ plan, gather, downloads });
  }

  get numBlocks(): number {
    return this.#parts.plan.numBlocks;
  }

  get layout(): KvLayout {
    return this.#parts.plan.layout;
  }

  get #frames(): readonly KvFrame[] {
    return this.layout.frames;
  }

  /** Sets the blocks to export; call before the step's first submit. */
  begin({ blocks }: StepExport): void {
    this.#parts.gather.choose(blocks);
  }

  /**
   * Encodes the export of frame `index`; call after the dispatches of its layers. `step` is the index of the step among those in
   * flight.
   */
  encode(encoder: GPUCommandEncoder, index: number, numBlocks: number, step: number): void {
    const { gather, downloads } = this.#parts;
    const frame = this.#frames[index]!;
    gather.encode(encoder, 'gather', frame, numBlocks);
    encoder.copyBufferToBuffer(gather.staging, 0, downloads[step]![index]!, 0, numBlocks * frame.rawBytes);
  }

  /** Call when the whole step is submitted. Copies each frame to `outs` and calls `onRange`; resolves after the last frame. */
  async arrived({ blocks, outs, onRange }: StepExport, step: number): Promise<void> {
    const { downloads } = this.#parts;
    const mapped = this.#frames.map(({ rawBytes }, i) => {
      const mapping = polled(downloads[step]![i]!.mapAsync(GPUMapMode.READ, 0, blocks.length * rawBytes));
      // A lost device rejects them all; the first is the error.
      mapping.catch(() => undefined);
      return mapping;
    });
    for (const [i, { offset: at, rawBytes: bytes }] of this.#frames.entries()) {
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
