/**
 * Weights on the device: streamed in slices, packed on the way, split where a binding cannot hold them whole.
 *
 * A product that ends in a gate, silu(gate) · up or another, has its outputs interleaved (gate 0, up 0, gate 1, ...), so that one workgroup has both
 * and a split never parts them.
 */
import assert from 'node:assert/strict';
import type { WeightSource } from '../device.ts';
import { storageFormat, type TensorRows, type WeightSpec } from '../program.ts';
import { numStored, RowDecoder } from '../weights/stored_rows.ts';
import { rowBytes, scalesPerRow, type PackedRows, type WeightFormat } from '../weights/weight_format.ts';
import { fillRandom } from './fill_random.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { packParams, PARAMS_STRIDE, type KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Above 4 MiB Dawn makes a staging buffer per write. */
const UPLOAD_BYTES = 4 << 20;
/** Dawn forces a submit at 16 MiB pending; waiting here bounds what is staged. */
const PENDING_BYTES = 64 << 20;

/** Part of a weight that fits in one binding: outputs [firstOutput, firstOutput + outputs). */
export interface WeightSlice {
  readonly data: GPUBuffer;
  /** Scales of these outputs; undefined for formats without scales. */
  readonly scales: GPUBuffer | undefined;
  readonly firstOutput: number;
  readonly outputs: number;
}

/** A weight on the device, split into slices where one binding cannot hold the whole. */
export interface GpuWeight {
  readonly format: WeightFormat;
  readonly outputs: number;
  readonly inner: number;
  readonly slices: readonly WeightSlice[];
}

/** Returns the bytes that the weight takes on the device, scales included. */
export function weightBytes(spec: WeightSpec, wanted: WeightFormat): number {
  const format = storageFormat(spec, wanted);
  if (spec.inner === 1) return spec.outputs * 4;
  return spec.outputs * (rowBytes(format, spec.inner) + 2 * scalesPerRow(format, spec.inner));
}

/** Loads weights to the device: reads slices from the source, packs them and uploads them. */
export class WeightLoader {
  readonly #device: GPUDevice;
  readonly #memory: GpuMemory;
  readonly #kernels: KernelCache;
  readonly #decoder = new RowDecoder();
  #pendingBytes = 0;

  constructor(device: GPUDevice, memory: GpuMemory, kernels: KernelCache) {
    this.#device = device;
    this.#memory = memory;
    this.#kernels = kernels;
  }

  /**
   * Loads one weight: allocates its slices, and fills them from the source or with random values. @throws DeviceError when the device
   * is full.
   */
  async load(
    name: string,
    spec: WeightSpec,
    wanted: WeightFormat,
    isInterleaved: boolean,
    source: WeightSource,
    onBytes: (bytes: number) => void,
  ): Promise<GpuWeight> {
    const format = storageFormat(spec, wanted);
    const weight = await this.#allocate(name, spec, format);
    if (source.randomSeed !== undefined) {
      await this.#fill(weight, source.randomSeed);
      return weight;
    }
    if (isInterleaved) await this.#loadPairs(weight, spec, source, onBytes);
    else await this.#loadParts(weight, spec, source, onBytes);
    return weight;
  }

  async #allocate(
    name: string,
    { outputs, inner, expertOutputs = 2 }: WeightSpec,
    format: WeightFormat,
  ): Promise<GpuWeight> {
    // A vector is one row: its values lie side by side.
    if (inner === 1) {
      const data = await this.#memory.storage('weights', name, Math.ceil(outputs / 32) * 128);
      return { format, outputs, inner, slices: [{ data, scales: undefined, firstOutput: 0, outputs }] };
    }
    const perRow = rowBytes(format, inner);
    // Pairs of gate and up stay together, and so do the outputs of an expert.
    const fitting = Math.floor(this.#memory.sliceBytes / perRow / expertOutputs) * expertOutputs;
    const perSlice = Math.max(expertOutputs, fitting);
    const slices: WeightSlice[] = [];
    for (let firstOutput = 0; firstOutput < outputs; firstOutput += perSlice) {
      const count = Math.min(perSlice, outputs - firstOutput);
      const scaleBytes = count * scalesPerRow(format, inner) * 2;
      slices.push({
        data: await this.#memory.storage('weights', name, count * perRow),
        scales: scaleBytes > 0 ? await this.#memory.storage('weights', `${name} scales`, scaleBytes) : undefined,
        firstOutput,
        outputs: count,
      });
    }
    return { format, outputs, inner, slices };
  }

  async #loadParts(
    weight: GpuWeight,
    spec: WeightSpec,
    source: WeightSource,
    onBytes: (bytes: number) => void,
  ): Promise<void> {
    let firstOutput = 0;
    for (const part of spec.parts) {
      for await (const rows of source.slices(part)) {
        const first = firstOutput + rows.rowStart;
        if (spec.inner === 1) this.#putVector(weight, first, this.#decoder.vector(rows, spec.offset));
        else await this.#put(weight, first, this.#decoder.packed(weight.format, rows, spec.inner));
        onBytes(numStored(rows, spec.inner) * spec.inner * 4);
      }
      firstOutput += part.outputs;
    }
    assert(firstOutput === spec.outputs, `parts make ${firstOutput} outputs, want ${spec.outputs}`);
  }

  /** Loads gates and ups interleaved; the weights of a mixture have a pair of parts for each expert. */
  async #loadPairs(
    weight: GpuWeight,
    spec: WeightSpec,
    source: WeightSource,
    onBytes: (bytes: number) => void,
  ): Promise<void> {
    const { parts } = spec;
    let firstOutput = 0;
    for (let i = 0; i < parts.length; i += 2) {
      const [gate, up] = [parts[i]!, parts[i + 1]];
      assert(up && gate.outputs === up.outputs, 'gate and up have one size');
      await this.#loadPair(weight, firstOutput, [gate, up], source, onBytes);
      firstOutput += 2 * gate.outputs;
    }
  }

  /** Keeps all gates in memory, packed, while the ups stream in. */
  async #loadPair(
    weight: GpuWeight,
    firstOutput: number,
    [gate, up]: readonly [gate: TensorRows, up: TensorRows],
    source: WeightSource,
    onBytes: (bytes: number) => void,
  ): Promise<void> {
    const { format, inner } = weight;
    const [words, halves] = [rowBytes(format, inner) / 4, scalesPerRow(format, inner)];
    const gates: PackedRows = {
      data: new Uint32Array(gate.outputs * words),
      scales: new Uint16Array(gate.outputs * halves),
    };
    for await (const rows of source.slices(gate)) {
      const { data, scales } = this.#decoder.packed(format, rows, inner);
      gates.data.set(data, rows.rowStart * words);
      gates.scales.set(scales, rows.rowStart * halves);
      onBytes(numStored(rows, inner) * inner * 4);
    }
    for await (const rows of source.slices(up)) {
      const { rowStart } = rows;
      const ups = this.#decoder.packed(format, rows, inner);
      const pairs = {
        data: inPairs(gates.data.subarray(rowStart * words), ups.data, words),
        scales: inPairs(gates.scales.subarray(rowStart * halves), ups.scales, halves),
      };
      await this.#put(weight, firstOutput + 2 * rowStart, pairs);
      onBytes(numStored(rows, inner) * inner * 4);
    }
  }

  #putVector({ slices }: GpuWeight, first: number, values: Float32Array<ArrayBuffer>): void {
    this.#upload(slices[0]!.data, first * 4, new Uint8Array(values.buffer));
  }

  /** Uploads packed rows as the outputs from `first` on, split over the slices that contain them. */
  async #put({ format, inner, slices }: GpuWeight, first: number, { data, scales }: PackedRows): Promise<void> {
    const perRow = rowBytes(format, inner);
    const numRows = data.byteLength / perRow;
    const scaleBytes = scalesPerRow(format, inner) * 2;
    for (const slice of slices) {
      const start = Math.max(first, slice.firstOutput);
      const end = Math.min(first + numRows, slice.firstOutput + slice.outputs);
      if (start >= end) continue;
      const [from, to, count] = [start - first, start - slice.firstOutput, end - start];
      this.#upload(slice.data, to * perRow, new Uint8Array(data.buffer, from * perRow, count * perRow));
      if (slice.scales) {
        this.#upload(
          slice.scales,
          to * scaleBytes,
          new Uint8Array(scales.buffer, from * scaleBytes, count * scaleBytes),
        );
      }
    }
    if (this.#pendingBytes > PENDING_BYTES) {
      this.#pendingBytes = 0;
      await polled(this.#device.queue.onSubmittedWorkDone());
    }
  }

  #upload(buffer: GPUBuffer, offset: number, bytes: Uint8Array<ArrayBuffer>): void {
    for (let at = 0; at < bytes.length; at += UPLOAD_BYTES) {
      const count = Math.min(UPLOAD_BYTES, bytes.length - at);
      this.#device.queue.writeBuffer(buffer, offset + at, bytes.buffer, bytes.byteOffset + at, count);
    }
    this.#pendingBytes += bytes.length;
  }

  /**
   * Fills a weight with random quantised values, and scales that keep each output's dot product at a moderate size; vectors become
   * ones.
   */
  async #fill({ format, inner, slices }: GpuWeight, seed: number): Promise<void> {
    const amplitude = Math.sqrt(3 / inner);
    // A stored scale of iq4 is 64 times as large as what an integer counts.
    const largest: Readonly<Partial<Record<WeightFormat, number>>> = { int8: 127, mxfp4: 12, iq4: 127 / 64 };
    const scaleKinds: Readonly<Partial<Record<WeightFormat, number>>> = { uint4: 6, mxfp4: 7 };
    const kinds: Readonly<Record<WeightFormat, number>> = {
      f32: 0,
      f16: 1,
      int8: 2,
      int4: 3,
      uint4: 3,
      mxfp4: 3,
      iq4: 3,
    };
    for (const { data, scales } of slices) {
      await this.#fillWords(data, inner === 1 ? 5 : kinds[format], seed, amplitude);
      if (scales) await this.#fillWords(scales, scaleKinds[format] ?? 4, seed, amplitude / (largest[format] ?? 8));
    }
  }

  async #fillWords(buffer: GPUBuffer, kind: number, seed: number, amplitude: number): Promise<void> {
    const device = this.#device;
    const words = buffer.size / 4;
    const groups = Math.ceil(words / fillRandom.constants.WORKGROUP_SIZE);
    const gridX = Math.min(groups, device.limits.maxComputeWorkgroupsPerDimension);
    const pipeline = await polled(this.#kernels.pipeline(fillRandom, { constants: { KIND: kind } }));
    const values = new DataView(new ArrayBuffer(PARAMS_STRIDE));
    packParams(fillRandom, { words, seed, grid_x: gridX, amplitude }, values, 0);
    const params = device.createBuffer({
      size: PARAMS_STRIDE,
      usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    });
    device.queue.writeBuffer(params, 0, values.buffer);
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, this.#kernels.bind(fillRandom, { buffer: params, offset: 0 }, { words: buffer }));
    pass.dispatchWorkgroups(gridX, Math.ceil(groups / gridX));
    pass.end();
    device.queue.submit([encoder.finish()]);
    await polled(device.queue.onSubmittedWorkDone());
    params.destroy();
  }
}

/**
 * Returns rows of `perRow` elements interleaved: the first of `a`, the first of `b`, the second of `a`, and so on, as many of each as
 * `b` has.
 */
function inPairs<T extends Uint32Array<ArrayBuffer> | Uint16Array<ArrayBuffer>>(a: T, b: T, perRow: number): T {
  const pairs = new (b.constructor as new (length: number) => T)(2 * b.length);
  for (let at = 0; at < b.length; at += perRow) {
    pairs.set(a.subarray(at, at + perRow), 2 * at);
    pairs.set(b.subarray(at, at + perRow), 2 * at + perRow);
  }
  return pairs;
}
