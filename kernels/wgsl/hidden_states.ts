/** Hidden states of a step on their way to the host: copied row by row into a mappable buffer, one segment after the other. */
import type { HiddenRows } from '../device.ts';
import type { Program } from '../program.ts';
import { hiddenOf } from '../program_kinds.ts';
import { rowStride } from './dispatch_plan.ts';

/** Returns the bytes of the hidden states of `numRows` rows of the program, with the padding that rows have on the device. */
export function hiddenBytes(program: Program, numRows: number): number {
  return numRows * rowStride(hiddenOf(program)?.width ?? 0) * 4;
}

/** Buffer of a program's hidden states, and their way to the host. */
export class HiddenStates {
  /** Values of a row's hidden state; 0 when the program has none. */
  readonly width: number;
  readonly #device: GPUDevice;
  readonly #buffer: GPUBuffer | undefined;
  /** Values from one row to the next on the device. */
  readonly #stride: number;

  constructor(device: GPUDevice, program: Program, buffers: ReadonlyMap<string, GPUBuffer>) {
    const hidden = hiddenOf(program);
    this.width = hidden?.width ?? 0;
    this.#device = device;
    this.#buffer = hidden && buffers.get(hidden.name);
    this.#stride = rowStride(this.width);
  }

  /** Returns the bytes that {@link copy} copies. */
  bytesOf(wanted: readonly HiddenRows[]): number {
    return wanted.reduce((sum, { out }) => sum + (out.length / this.width) * this.#stride * 4, 0);
  }

  /** Returns the commands that copy the wanted rows into `to`, one after the other. */
  copy(wanted: readonly HiddenRows[], to: GPUBuffer): GPUCommandBuffer {
    const encoder = this.#device.createCommandEncoder();
    let at = 0;
    for (const rows of wanted) {
      const bytes = this.bytesOf([rows]);
      encoder.copyBufferToBuffer(this.#buffer!, rows.first * this.#stride * 4, to, at, bytes);
      at += bytes;
    }
    return encoder.finish();
  }

  /** Writes hidden states, as {@link copy} has copied them, to where they are wanted. */
  read(values: Float32Array, wanted: readonly HiddenRows[]): void {
    const { width } = this;
    let at = 0;
    for (const { out } of wanted) {
      for (let row = 0; row * width < out.length; row++, at += this.#stride)
        out.set(values.subarray(at, at + width), row * width);
    }
  }
}
