/** Weights into their panels, a staging region at a time. */
import assert from 'node:assert/strict';
import type { LoadOptions, WeightSource } from '../device.ts';
import { heldFormat, type Program, type WeightSpec } from '../program.ts';
import { numStored, RowDecoder, storedIntegers, type StoredIntegers, type StoredRows } from '../stored_rows.ts';
import { rowBytes, scalesPerRow, type WeightFormat } from '../weight_format.ts';
import type { Kernels } from './kernel_exports.ts';
import { formatCode } from './panels.ts';
import type { ProgramLayout } from './program_layout.ts';

/** Streams every tensor of the program. */
export async function loadWeights(
  program: Program,
  source: WeightSource,
  layout: ProgramLayout,
  kernels: Kernels,
  memory: WebAssembly.Memory,
  { onProgress, weightFormat }: LoadOptions,
): Promise<void> {
  const entries = Object.entries(program.weights);
  const totalBytes = entries.reduce((sum, [, { outputs, inner }]) => sum + outputs * inner * 4, 0);
  const decoder = new RowDecoder();
  let doneBytes = 0;
  for (const [name, spec] of entries) {
    const panels = new Panels(kernels, memory, layout, layout.weights.get(name)!, spec, weightFormat);
    let firstOutput = 0;
    for (const part of spec.parts) {
      for await (const rows of source.slices(part)) {
        panels.put(rows, decoder, firstOutput + rows.rowStart);
        doneBytes += numStored(rows, spec.inner) * spec.inner * 4;
        onProgress?.(doneBytes, totalBytes);
      }
      firstOutput += part.outputs;
    }
    assert(firstOutput === spec.outputs, `weight ${name}: parts make ${firstOutput} outputs, want ${spec.outputs}`);
  }
}

/** The panels of one weight. */
class Panels {
  readonly #kernels: Kernels;
  readonly #staging: Uint8Array;
  readonly #to: number;
  readonly #inner: number;
  readonly #offset: number;
  readonly #format: WeightFormat;
  readonly #code: number;

  constructor(
    kernels: Kernels,
    memory: WebAssembly.Memory,
    { staging, stagingBytes }: ProgramLayout,
    to: number,
    spec: WeightSpec,
    format: WeightFormat,
  ) {
    this.#kernels = kernels;
    this.#staging = new Uint8Array(memory.buffer, staging, stagingBytes);
    this.#to = to;
    this.#inner = spec.inner;
    this.#offset = spec.offset ?? 0;
    this.#format = heldFormat(spec, format);
    this.#code = formatCode(spec, format);
  }

  /** Rows of the weight from `firstOutput` on. */
  put(rows: StoredRows, decoder: RowDecoder, firstOutput: number): void {
    const integers = this.#inner > 1 ? storedIntegers(this.#format, rows, this.#inner) : undefined;
    if (integers) this.#putIntegers(integers, firstOutput);
    else if (this.#inner === 1) this.#putFloats(decoder.vector(rows, this.#offset), firstOutput);
    else this.#putFloats(decoder.floats(rows, this.#inner), firstOutput);
  }

  #putFloats(values: Float32Array, firstOutput: number): void {
    const inner = this.#inner;
    const rowsAtOnce = Math.floor(this.#staging.length / (inner * 4));
    for (let row = 0; row * inner < values.length; row += rowsAtOnce) {
      const some = values.subarray(row * inner, (row + rowsAtOnce) * inner);
      this.#staging.set(new Uint8Array(some.buffer, some.byteOffset, some.byteLength));
      const { byteOffset } = this.#staging;
      this.#kernels.pack_rows(this.#code, byteOffset, some.length / inner, inner, this.#to, firstOutput + row);
    }
  }

  #putIntegers({ data, scales }: StoredIntegers, firstOutput: number): void {
    const inner = this.#inner;
    const dataBytes = rowBytes(this.#format, inner);
    const scaleBytes = 2 * scalesPerRow(this.#format, inner);
    const rowsAtOnce = Math.floor(this.#staging.length / (dataBytes + scaleBytes));
    for (let row = 0; row * dataBytes < data.length; row += rowsAtOnce) {
      const some = data.subarray(row * dataBytes, (row + rowsAtOnce) * dataBytes);
      const numRows = some.length / dataBytes;
      this.#staging.set(some);
      this.#staging.set(scales.subarray(row * scaleBytes, (row + numRows) * scaleBytes), some.length);
      const { byteOffset } = this.#staging;
      const scalesAt = byteOffset + some.length;
      const first = firstOutput + row;
      this.#kernels.pack_stored(this.#code, byteOffset, scalesAt, scaleBytes, numRows, inner, this.#to, first);
    }
  }
}
