/**
 * Moves recurrent states between the device and the host, and copies them on the device. A state of a layer lies together in the
 * layer's buffer, [slots][layer bytes], so plain copies do it. Buffers are made once; a state that is larger goes in several rounds.
 */
import assert from 'node:assert/strict';
import { bytesOfLayers, type LayerRange } from '../kv_layout.ts';
import { slotRecord, type StateLayout } from '../state_layout.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { polled } from './polling.ts';

/** Bytes staged at once, unless a layer has more. */
const STAGING_BYTES = 8 << 20;
/** Mapped buffers in each direction: the host copies one round while the device transfers another. */
const RING = 2;

/** A layer of one state: its place in the layer's buffer, and where its bytes lie in a record and in a staging buffer. */
interface LayerCopy {
  readonly layer: number;
  readonly bytes: number;
  /** Byte offset in the layer's buffer. */
  readonly at: number;
  /** Index of the record among those that are moved, and byte offset in it. */
  readonly record: number;
  readonly inRecord: number;
  readonly staged: number;
}

interface Resources {
  readonly device: GPUDevice;
  /** A buffer per layer. */
  readonly states: readonly GPUBuffer[];
  readonly layout: StateLayout;
  readonly staging: GPUBuffer;
  readonly downloads: readonly GPUBuffer[];
  readonly uploads: readonly GPUBuffer[];
  readonly stagingBytes: number;
}

function stagingBytesOf({ slotBytes, layers }: StateLayout): number {
  return Math.max(Math.min(STAGING_BYTES, slotBytes), ...layers.map(({ bytes }) => bytes));
}

/** Returns the bytes of all buffers that a transfer makes. */
export function stateTransferBytes(layout: StateLayout): number {
  return (1 + 2 * RING) * stagingBytesOf(layout);
}

/** Moves states, whole or a range of their layers, between the device and host memory, and from slot to slot. */
export class StateTransfer {
  readonly #parts: Resources;

  private constructor(parts: Resources) {
    this.#parts = parts;
  }

  /** Makes the buffers of a transfer. `states` has one buffer per layer. @throws DeviceError when the device is full. */
  static async create(
    device: GPUDevice,
    memory: GpuMemory,
    states: readonly GPUBuffer[],
    layout: StateLayout,
  ): Promise<StateTransfer> {
    const stagingBytes = stagingBytesOf(layout);
    const ring = (label: string, usage: number): Promise<GPUBuffer[]> =>
      Promise.all(Array.from({ length: RING }, () => memory.allocate('transfer', label, stagingBytes, usage)));
    return new StateTransfer({
      device,
      states,
      layout,
      stagingBytes,
      staging: await memory.storage('transfer', 'state staging', stagingBytes),
      downloads: await ring('state download', GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST),
      uploads: await ring('state upload', GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC),
    });
  }

  get #all(): LayerRange {
    return { firstLayer: 0, numLayers: this.#parts.layout.layers.length };
  }

  /** Returns the layers of the slots' states in rounds, each of which fits into a staging buffer. */
  #rounds(slots: readonly number[], { firstLayer, numLayers }: LayerRange): LayerCopy[][] {
    const { layout, stagingBytes } = this.#parts;
    const start = layout.layers[firstLayer]?.offset ?? 0;
    const rounds: LayerCopy[][] = [[]];
    let staged = 0;
    slots.forEach((slot, record) => {
      for (let layer = firstLayer; layer < firstLayer + numLayers; layer++) {
        const { bytes, offset } = layout.layers[layer]!;
        if (bytes === 0) continue;
        if (staged + bytes > stagingBytes) {
          rounds.push([]);
          staged = 0;
        }
        rounds.at(-1)!.push({ layer, bytes, at: slot * bytes, record, inRecord: offset - start, staged });
        staged += bytes;
      }
    });
    return rounds;
  }

  async exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    const { device, states, downloads } = this.#parts;
    let last: Promise<void> | undefined;
    for (const [round, copies] of this.#rounds(slots, this.#all).entries()) {
      const download = downloads[round % RING]!;
      const encoder = device.createCommandEncoder();
      for (const { layer, at, staged, bytes } of copies)
        encoder.copyBufferToBuffer(states[layer]!, at, download, staged, bytes);
      device.queue.submit([encoder.finish()]);
      const end = bytesOf(copies);
      const mapped = polled(download.mapAsync(GPUMapMode.READ, 0, end));
      // A lost device rejects this promise too, after the caller has already got the rejection of the round before.
      mapped.catch(() => undefined);
      // The round before is copied to `outs` while this round is transferred.
      await last;
      last = mapped.then(() => {
        const range = new Uint8Array(download.getMappedRange(0, end));
        for (const { record, inRecord, staged, bytes } of copies)
          outs[record]!.set(range.subarray(staged, staged + bytes), inRecord);
        download.unmap();
      });
    }
    await last;
  }

  async importStates(
    slots: readonly number[],
    payloads: readonly Uint8Array[],
    layers: LayerRange = this.#all,
  ): Promise<void> {
    const { device, states, uploads, layout } = this.#parts;
    const { bytes: rangeBytes } = bytesOfLayers(slotRecord(layout), layers);
    for (const { length } of payloads)
      assert(length === rangeBytes, `a payload of these layers has ${rangeBytes} bytes, not ${length}`);
    for (const [round, copies] of this.#rounds(slots, layers).entries()) {
      const upload = uploads[round % RING]!;
      const end = bytesOf(copies);
      await polled(upload.mapAsync(GPUMapMode.WRITE, 0, end));
      const range = new Uint8Array(upload.getMappedRange(0, end));
      for (const { record, inRecord, staged, bytes } of copies)
        range.set(payloads[record]!.subarray(inRecord, inRecord + bytes), staged);
      upload.unmap();
      const encoder = device.createCommandEncoder();
      for (const { layer, at, staged, bytes } of copies)
        encoder.copyBufferToBuffer(upload, staged, states[layer]!, at, bytes);
      device.queue.submit([encoder.finish()]);
    }
  }

  /** Submits the copies at once; they come after what was submitted before. A buffer is not copied into itself, so they are staged. */
  copyStates(from: readonly number[], to: readonly number[]): void {
    const { device, states, staging } = this.#parts;
    const encoder = device.createCommandEncoder();
    for (const copies of this.#rounds(from, this.#all)) {
      for (const { layer, at, staged, bytes } of copies)
        encoder.copyBufferToBuffer(states[layer]!, at, staging, staged, bytes);
      for (const { layer, record, staged, bytes } of copies)
        encoder.copyBufferToBuffer(staging, staged, states[layer]!, to[record]! * bytes, bytes);
    }
    device.queue.submit([encoder.finish()]);
  }
}

function bytesOf(copies: readonly LayerCopy[]): number {
  const last = copies.at(-1);
  return last ? last.staged + last.bytes : 0;
}
