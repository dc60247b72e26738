/** Buffers of a program by their names, for tests: rows without the padding that they have on the device. */
import { DeviceError } from '../device.ts';
import type { Program } from '../program.ts';
import { rowStride } from './dispatch_plan.ts';

/** Reads and writes the named buffers of a program, [rows, width] f32 without the padding they have on the device. */
export class NamedBuffers {
  readonly #device: GPUDevice;
  readonly #program: Program;
  readonly #buffers: ReadonlyMap<string, GPUBuffer>;

  constructor(device: GPUDevice, program: Program, buffers: ReadonlyMap<string, GPUBuffer>) {
    this.#device = device;
    this.#program = program;
    this.#buffers = buffers;
  }

  /**
   * Writes the first rows of a buffer from `values`, [rows, width] f32. @throws DeviceError for a buffer that the program does not
   * have.
   */
  write(name: string, values: Float32Array): void {
    const { buffer, width, stride } = this.#find(name);
    const numRows = Math.ceil(values.length / width);
    const padded = new Float32Array(numRows * stride);
    for (let row = 0; row < numRows; row++) padded.set(values.subarray(row * width, (row + 1) * width), row * stride);
    this.#device.queue.writeBuffer(buffer, 0, padded);
  }

  /**
   * Returns the first rows of a buffer, [numRows, width] f32. `finish` waits for the device. @throws DeviceError for a buffer that the
   * program does not have.
   */
  async read(name: string, numRows: number, finish: (mapped: Promise<void>) => Promise<void>): Promise<Float32Array> {
    const { buffer, width, stride } = this.#find(name);
    const bytes = numRows * stride * 4;
    const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ;
    const staging = this.#device.createBuffer({ size: bytes, usage });
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, bytes);
    this.#device.queue.submit([encoder.finish()]);
    await finish(staging.mapAsync(GPUMapMode.READ));
    const padded = new Float32Array(staging.getMappedRange().slice(0));
    staging.destroy();
    const out = new Float32Array(numRows * width);
    for (let row = 0; row < numRows; row++) out.set(padded.subarray(row * stride, row * stride + width), row * width);
    return out;
  }

  #find(name: string): { buffer: GPUBuffer; width: number; stride: number } {
    const [buffer, spec] = [this.#buffers.get(name), this.#program.buffers[name]];
    if (!spec) throw new DeviceError(`the program has no buffer ${name}`);
    if (!buffer)
      throw new DeviceError(
        `the buffer ${name} does not exist on this device: the operations that write and read it are fused into one kernel`,
      );
    return { buffer, width: spec.width, stride: rowStride(spec.width) };
  }
}
