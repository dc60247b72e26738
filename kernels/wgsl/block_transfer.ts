/**
 * Moves KV blocks between the device and the host: a kernel gathers the layers of some blocks into records side by side (or scatters
 * them), and one copy moves the records to or from a mapped buffer. Buffers are made once; STAGING_BYTES limits how many blocks move
 * at once.
 */
import assert from 'node:assert/strict';
import { bytesOfLayers, type KvLayout, type LayerRange } from '../kv_layout.ts';
import { BlockGather } from './block_gather.ts';
import type { GpuMemory } from './gpu_memory.ts';
import type { KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Maximum bytes staged at once; a larger batch goes in several rounds. */
const STAGING_BYTES = 16 << 20;
/** Mapped buffers in each direction: the host copies one round while the device transfers another. */
const RING = 2;

/** Returns the upper bound on the bytes of all buffers that a transfer makes: the staging buffer and two rings. */
export function transferBytes(blockBytes: number): number {
  return (1 + 2 * RING) * Math.max(STAGING_BYTES, blockBytes);
}

interface Resources {
  readonly device: GPUDevice;
  readonly gather: BlockGather;
  readonly downloads: readonly GPUBuffer[];
  readonly uploads: readonly GPUBuffer[];
  readonly layout: KvLayout;
  readonly capacity: number;
}

/** Moves whole KV blocks, or a layer range of them, between the device and host memory. */
export class BlockTransfer {
  readonly #device: GPUDevice;
  readonly #gather: BlockGather;
  readonly #downloads: readonly GPUBuffer[];
  readonly #uploads: readonly GPUBuffer[];
  readonly #layout: KvLayout;
  readonly #capacity: number;

  private constructor({ device, gather, downloads, uploads, layout, capacity }: Resources) {
    this.#device = device;
    this.#gather = gather;
    this.#downloads = downloads;
    this.#uploads = uploads;
    this.#layout = layout;
    this.#capacity = capacity;
  }

  /** Makes the pipelines and buffers of a transfer. `kv` has one buffer per layer. @throws DeviceError when the device is full. */
  static async create(
    device: GPUDevice,
    memory: GpuMemory,
    kernels: KernelCache,
    kv: readonly GPUBuffer[],
    layout: KvLayout,
    numBlocks: number,
  ): Promise<BlockTransfer> {
    const { blockBytes, layers } = layout;
    const capacity = Math.max(
      1,
      Math.min(numBlocks, Math.floor(Math.min(STAGING_BYTES, memory.maxBytes) / blockBytes)),
    );
    const layerBytes = layers.map(({ bytes }) => bytes);
    const staged = layers.map(({ offset }) => ({ at: offset, stagedBytes: blockBytes }));
    const gather = await BlockGather.create({
      label: 'block',
      device,
      memory,
      kernels,
      kv,
      layerBytes,
      staged,
      numBlocks: capacity,
    });
    const ring = (label: string, usage: number): Promise<GPUBuffer[]> =>
      Promise.all(Array.from({ length: RING }, () => memory.allocate('transfer', label, capacity * blockBytes, usage)));
    return new BlockTransfer({
      device,
      gather,
      layout,
      capacity,
      downloads: await ring('block download', GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST),
      uploads: await ring('block upload', GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC),
    });
  }

  get #all(): LayerRange {
    return { firstLayer: 0, numLayers: this.#layout.layers.length };
  }

  get #blockBytes(): number {
    return this.#layout.blockBytes;
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    let last: Promise<void> | undefined;
    for (let start = 0, round = 0; start < blockIds.length; start += this.#capacity, round++) {
      const ids = blockIds.slice(start, start + this.#capacity);
      const bytes = ids.length * this.#blockBytes;
      const download = this.#downloads[round % RING]!;
      const encoder = this.#device.createCommandEncoder();
      this.#gather.choose(ids);
      this.#gather.encode(encoder, 'gather', this.#all, ids.length);
      encoder.copyBufferToBuffer(this.#gather.staging, 0, download, 0, bytes);
      this.#device.queue.submit([encoder.finish()]);
      const mapped = polled(download.mapAsync(GPUMapMode.READ, 0, bytes));
      // A lost device rejects this promise too, after the caller has already got the rejection of the round before.
      mapped.catch(() => undefined);
      // The round before is copied to `outs` while this round is transferred.
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

  /** Submits the copies at once; they come after what was submitted before. */
  copyBlocks(from: readonly number[], to: readonly number[]): void {
    for (let start = 0; start < from.length; start += this.#capacity) {
      const ids = from.slice(start, start + this.#capacity);
      this.#move('gather', ids);
      this.#move('scatter', to.slice(start, start + ids.length));
    }
  }

  /** Submits a pass of its own, because the list of blocks that a pass reads is written when the pass is submitted. */
  #move(direction: 'gather' | 'scatter', ids: readonly number[]): void {
    const encoder = this.#device.createCommandEncoder();
    this.#gather.choose(ids);
    this.#gather.encode(encoder, direction, this.#all, ids.length);
    this.#device.queue.submit([encoder.finish()]);
  }

  async importBlocks(
    blockIds: readonly number[],
    payloads: readonly Uint8Array[],
    layers: LayerRange = this.#all,
  ): Promise<void> {
    const { staging } = this.#gather;
    const { at, bytes: rangeBytes } = bytesOfLayers(this.#layout, layers);
    for (let start = 0, round = 0; start < blockIds.length; start += this.#capacity, round++) {
      const ids = blockIds.slice(start, start + this.#capacity);
      const bytes = ids.length * this.#blockBytes;
      const upload = this.#uploads[round % RING]!;
      await polled(upload.mapAsync(GPUMapMode.WRITE, 0, bytes));
      const range = new Uint8Array(upload.getMappedRange(0, bytes));
      ids.forEach((_, i) => {
        const payload = payloads[start + i]!;
        assert(
          payload.length === rangeBytes,
          `a payload of these layers has ${rangeBytes} bytes, not ${payload.length}`,
        );
        range.set(payload, i * this.#blockBytes + at);
      });
      upload.unmap();
      const encoder = this.#device.createCommandEncoder();
      if (rangeBytes === this.#blockBytes) encoder.copyBufferToBuffer(upload, 0, staging, 0, bytes);
      else {
        ids.forEach((_, i) => {
          const place = i * this.#blockBytes + at;
          encoder.copyBufferToBuffer(upload, place, staging, place, rangeBytes);
        });
      }
      this.#gather.choose(ids);
      this.#gather.encode(encoder, 'scatter', layers, ids.length);
      this.#device.queue.submit([encoder.finish()]);
    }
  }
}
