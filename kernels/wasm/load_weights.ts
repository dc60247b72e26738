/** Weights into their panels, a staging region at a time. */
import assert from 'node:assert/strict';
import type { LoadOptions, WeightSource } from '../device.ts';
import { heldFormat, type Program, type WeightSpec } from '../program.ts';
import { fitsInto, numStored, storedBytes, type RowDecoder, type StoredRows } from '../stored_rows.ts';
import type { WeightFormat } from '../weight_format.ts';
import type { Kernels } from './kernel_exports.ts';
import { formatCode, LANES } from './panels.ts';
import type { Piece } from './pieces.ts';
import type { ProgramLayout } from './program_layout.ts';

/** Counts what is there of the weights of all pieces. */
export function progressOf(pieces: readonly Piece[], { onProgress }: LoadOptions): (bytes: number) => void {
  const specs = pieces.flatMap(({ program }) => Object.values(program.weights));
  const totalBytes = specs.reduce((sum, { outputs, inner }) => sum + outputs * inner * 4, 0);
  let doneBytes = 0;
  return (bytes) => {
    doneBytes += bytes;
    onProgress?.(doneBytes, totalBytes);
  };
}

/** Streams every tensor of the program into the memory that `kernels` have; `onLoaded` is told of bytes, as f32. */
export async function loadWeights(
  program: Program,
  source: WeightSource,
  layout: ProgramLayout,
  kernels: Kernels,
  { memory, options, decoder, onLoaded }: WeightLoad,
): Promise<void> {
  for (const [name, spec] of Object.entries(program.weights)) {
    const panels = new Panels(kernels, memory, layout, layout.weights.get(name)!, spec, options.weightFormat);
    let firstOutput = 0;
    for (const part of spec.parts) {
      for await (const rows of source.slices(part)) {
        panels.put(rows, decoder, firstOutput + rows.rowStart);
        onLoaded(numStored(rows, spec.inner) * spec.inner * 4);
      }
      firstOutput += part.outputs;
    }
    assert(firstOutput === spec.outputs, `weight ${name}: parts make ${firstOutput} outputs, want ${spec.outputs}`);
  }
}

interface WeightLoad {
  readonly memory: WebAssembly.Memory;
  readonly options: LoadOptions;
  readonly decoder: RowDecoder;
  readonly onLoaded: (bytes: number) => void;
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
    const integers = INTEGERS[rows.format];
    if (this.#inner === 1) this.#putFloats('f32', asBytes(decoder.vector(rows, this.#offset)), firstOutput);
    else if (integers !== undefined && fitsInto(rows.format, this.#format))
      this.#putIntegers(integers, rows, firstOutput);
    else if (rows.format === 'f16' || rows.format === 'bf16') this.#putFloats(rows.format, rows.data, firstOutput);
    else this.#putFloats('f32', asBytes(decoder.floats(rows, this.#inner)), firstOutput);
  }

  #putFloats(source: 'f32' | 'f16' | 'bf16', data: Uint8Array, firstOutput: number): void {
    const inner = this.#inner;
    const storedBytes = source === 'f32' ? 4 : 2;
    const rowsAtOnce = wholePanels((this.#staging.length - ROOM_BYTES) / (inner * 6));
    const { byteOffset } = this.#staging;
    const numRows = data.length / (inner * storedBytes);
    for (let row = 0; row < numRows; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, numRows - row);
      const some = data.subarray(row * inner * storedBytes, (row + count) * inner * storedBytes);
      const values = byteOffset + ROOM_BYTES;
      if (source === 'f32') this.#staging.set(some, ROOM_BYTES);
      else {
        const from = ROOM_BYTES + rowsAtOnce * inner * 4;
        this.#staging.set(some, from);
        this.#kernels.widen(source === 'f16' ? 1 : 2, byteOffset + from, count * inner, values);
      }
      this.#kernels.pack_rows(this.#code, values, count, inner, this.#to, firstOutput + row, byteOffset);
    }
  }

  #putIntegers(source: number, rows: StoredRows, firstOutput: number): void {
    const inner = this.#inner;
    const { data, scales } = rows;
    const dataRow = storedBytes(rows.format, inner);
    const numRows = numStored(rows, inner);
    const scaleRow = scales ? scales.length / numRows : 0;
    const rowsAtOnce = wholePanels(this.#staging.length / (dataRow + scaleRow));
    const { byteOffset } = this.#staging;
    for (let row = 0; row < numRows; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, numRows - row);
      const some = data.subarray(row * dataRow, (row + count) * dataRow);
      this.#staging.set(some);
      if (scales) this.#staging.set(scales.subarray(row * scaleRow, (row + count) * scaleRow), some.length);
      const scalesAt = scales ? byteOffset + some.length : byteOffset;
      this.#kernels.pack_stored(
        ...([this.#code, source, byteOffset, dataRow, scalesAt, scaleRow || dataRow] as const),
        ...([count, inner, this.#to, firstOutput + row] as const),
      );
    }
  }
}

/** By the numbers that the kernels use. */
const INTEGERS: Readonly<Partial<Record<StoredRows['format'], number>>> = { int8: 0, int4: 1, q8_0: 2, q4_0: 3 };

/** For a group of eight rows, and the end of a row. */
const ROOM_BYTES = 640;

/** As many rows as fill panels, where there are as many; eight fit, see {@link stagingBytesOf}. */
function wholePanels(rows: number): number {
  return rows >= LANES ? Math.floor(rows / LANES) * LANES : Math.max(1, Math.floor(rows));
}

function asBytes(values: Float32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** Bytes of the region through which weights pass: eight rows, or a MiB. */
export function stagingBytesOf(specs: readonly WeightSpec[]): number {
  const widest = specs.reduce((most, { inner }) => Math.max(most, inner), 0);
  return Math.max(1 << 20, LANES * widest * 6 + 2 * ROOM_BYTES);
}
