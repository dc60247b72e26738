/**
 * KV blocks in and out: a kernel gathers the layers of some blocks into records side by side (or scatters them), one copy moves
 * them between there and a mapped buffer. Buffers are made once; how many blocks move at once is the byte budget's doing.
 */
import assert from 'node:assert/strict';
import type { LayerRange } from '../device.ts';
import { gatherBlocks } from './gather_blocks.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { packParams, PARAMS_STRIDE, type KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Staged at once; a larger batch goes in several rounds. */
const STAGING_BYTES = 16 << 20;
/** The next round's host copy runs while the last one's transfer does. */
const RING = 2;
/** Bytes that a thread moves. */
const QUAD = 16;

/** Of everything a transfer makes: the staging buffer and two rings. */
export function transferBytes(blockBytes: number): number {
  return (1 + 2 * RING) * Math.max(STAGING_BYTES, blockBytes);
}

export class BlockTransfer {
  readonly #device: GPUDevice;
  readonly #pipelines: { readonly gather: GPUComputePipeline; readonly scatter: GPUComputePipeline };
  readonly #bindGroups: readonly GPUBindGroup[];
  readonly #list: GPUBuffer;
  readonly #staging: GPUBuffer;
  readonly #downloads: readonly GPUBuffer[];
  readonly #uploads: readonly GPUBuffer[];
  readonly #blockBytes: number;
  /** By layer, and the end: where it begins in a payload. */
  readonly #layerAt: readonly number[];
  readonly #capacity: number;
  /** By layer. */
  readonly #groupsX: readonly number[];

  private constructor(parts: {
    device: GPUDevice;
    pipelines: { gather: GPUComputePipeline; scatter: GPUComputePipeline };
    bindGroups: readonly GPUBindGroup[];
    list: GPUBuffer;
    staging: GPUBuffer;
    downloads: readonly GPUBuffer[];
    uploads: readonly GPUBuffer[];
    blockBytes: number;
    layerAt: readonly number[];
    capacity: number;
    groupsX: readonly number[];
  }) {
    this.#device = parts.device;
    this.#pipelines = parts.pipelines;
    this.#bindGroups = parts.bindGroups;
    this.#list = parts.list;
    this.#staging = parts.staging;
    this.#downloads = parts.downloads;
    this.#uploads = parts.uploads;
    this.#blockBytes = parts.blockBytes;
    this.#layerAt = parts.layerAt;
    this.#capacity = parts.capacity;
    this.#groupsX = parts.groupsX;
  }

  /** `kv` has a buffer per layer, `layerBytes` of a block each. @throws DeviceError when the device is full. */
  static async create(
    device: GPUDevice,
    memory: GpuMemory,
    kernels: KernelCache,
    kv: readonly GPUBuffer[],
    layerBytes: readonly number[],
    numBlocks: number,
  ): Promise<BlockTransfer> {
    const blockBytes = layerBytes.reduce((sum, bytes) => sum + bytes, 0);
    const capacity = Math.max(
      1,
      Math.min(numBlocks, Math.floor(Math.min(STAGING_BYTES, memory.maxBytes) / blockBytes)),
    );
    const bytes = capacity * blockBytes;
    const list = await memory.storage('transfer', 'block list', capacity * 4);
    const staging = await memory.storage('transfer', 'block staging', bytes);
    const params = await memory.allocate(
      'transfer',
      'block params',
      kv.length * PARAMS_STRIDE,
      GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    );
    const values = new DataView(new ArrayBuffer(kv.length * PARAMS_STRIDE));
    const layerAt = [0];
    layerBytes.forEach((layer, i) => {
      const at = layerAt[i]!;
      const fields = { layer_at: at / QUAD, layer_quads: layer / QUAD, record_quads: blockBytes / QUAD };
      packParams(gatherBlocks, fields, values, i * PARAMS_STRIDE);
      layerAt.push(at + layer);
    });
    device.queue.writeBuffer(params, 0, values.buffer);
    const ring = (label: string, usage: number): Promise<GPUBuffer[]> =>
      Promise.all(Array.from({ length: RING }, () => memory.allocate('transfer', label, bytes, usage)));
    const [gather, scatter] = await polled(
      Promise.all([
        kernels.pipeline(gatherBlocks, { constants: { SCATTER: 0 } }),
        kernels.pipeline(gatherBlocks, { constants: { SCATTER: 1 } }),
      ]),
    );
    return new BlockTransfer({
      ...{ device, list, staging, blockBytes, layerAt, capacity, pipelines: { gather, scatter } },
      bindGroups: kv.map((layer, i) =>
        kernels.bind(gatherBlocks, { buffer: params, offset: i * PARAMS_STRIDE }, { list, kv: layer, staging }),
      ),
      downloads: await ring('block download', GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST),
      uploads: await ring('block upload', GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC),
      groupsX: layerBytes.map((layer) => Math.ceil(layer / QUAD / gatherBlocks.constants.WORKGROUP_SIZE)),
    });
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    let last: Promise<void> | undefined;
    for (let start = 0, round = 0; start < blockIds.length; start += this.#capacity, round++) {
      const ids = blockIds.slice(start, start + this.#capacity);
      const bytes = ids.length * this.#blockBytes;
      const download = this.#downloads[round % RING]!;
      const encoder = this.#device.createCommandEncoder();
      this.#encode(encoder, this.#pipelines.gather, ids, { firstLayer: 0, numLayers: this.#bindGroups.length });
      encoder.copyBufferToBuffer(this.#staging, 0, download, 0, bytes);
      this.#device.queue.submit([encoder.finish()]);
      const mapped = polled(download.mapAsync(GPUMapMode.READ, 0, bytes));
      // A lost device rejects this one too, after the round before has been the error.
      mapped.catch(() => undefined);
      // The round before is copied to its owners while this one is on its way.
      await last;
      last = mapped.then(() => {
        const range = new Uint8Array(download.getMappedRange(0, bytes));
        ids.forEach((_, i) => {
          outs[start + i]!.set(range.subarray(i * this.#blockBytes, (i + 1) * this.#blockBytes));
        });
        download.unmap();
      });
    }
    await last;
  }

  async importBlocks(
    blockIds: readonly number[],
    payloads: readonly Uint8Array[],
    layers: LayerRange = { firstLayer: 0, numLayers: this.#bindGroups.length },
  ): Promise<void> {
    const at = this.#layerAt[layers.firstLayer]!;
    const rangeBytes = this.#layerAt[layers.firstLayer + layers.numLayers]! - at;
    for (let start = 0, round = 0; start < blockIds.length; start += this.#capacity, round++) {
      const ids = blockIds.slice(start, start + this.#capacity);
      const bytes = ids.length * this.#blockBytes;
      const upload = this.#uploads[round % RING]!;
      await polled(upload.mapAsync(GPUMapMode.WRITE, 0, bytes));
      const range = new Uint8Array(upload.getMappedRange(0, bytes));
      ids.forEach((_, i) => {
        const payload = payloads[start + i]!;
        assert(payload.length === rangeBytes, `so much of a block has ${rangeBytes} bytes, not ${payload.length}`);
        range.set(payload, i * this.#blockBytes + at);
      });
      upload.unmap();
      const encoder = this.#device.createCommandEncoder();
      if (rangeBytes === this.#blockBytes) encoder.copyBufferToBuffer(upload, 0, this.#staging, 0, bytes);
      else {
        ids.forEach((_, i) => {
          const place = i * this.#blockBytes + at;
          encoder.copyBufferToBuffer(upload, place, this.#staging, place, rangeBytes);
        });
      }
      this.#encode(encoder, this.#pipelines.scatter, ids, layers);
      this.#device.queue.submit([encoder.finish()]);
    }
  }

  #encode(
    encoder: GPUCommandEncoder,
    pipeline: GPUComputePipeline,
    ids: readonly number[],
    { firstLayer, numLayers }: LayerRange,
  ): void {
    this.#device.queue.writeBuffer(this.#list, 0, Uint32Array.from(ids));
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    for (let layer = firstLayer; layer < firstLayer + numLayers; layer++) {
      pass.setBindGroup(0, this.#bindGroups[layer]);
      pass.dispatchWorkgroups(this.#groupsX[layer]!, ids.length);
    }
    pass.end();
  }
}
