/** Rows of a tensor as a file stores them: integers of the very format that a device computes with are taken as they are, all else is decoded. */
import assert from 'node:assert/strict';
import { packRows, rowBytes, scalesPerRow, unpackRows, type PackedRows, type WeightFormat } from './weight_format.ts';

/** int8 and int4 lie as weight_format.ts has them, the others value by value; little-endian. */
type StoredFormat = WeightFormat | 'bf16';

export interface StoredRows {
  /** Of the rows that were asked for. */
  readonly rowStart: number;
  readonly format: StoredFormat;
  /** Whole rows; as valid as whoever gives them says. */
  readonly data: Uint8Array;
  /** Of int8 and int4: f16 [rows][scalesPerRow]. */
  readonly scales?: Uint8Array;
}

/** Rows of f32, from `rowStart` on. */
export function floatRows(values: Float32Array, rowStart = 0): StoredRows {
  return { rowStart, format: 'f32', data: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) };
}

/** Of one row. */
function storedBytes(format: StoredFormat, inner: number): number {
  if (format === 'int8' || format === 'int4') return rowBytes(format, inner);
  return inner * (format === 'f32' ? 4 : 2);
}

/** @throws AssertionError when they are not whole rows. */
export function numStored({ format, data }: StoredRows, inner: number): number {
  const numRows = data.length / storedBytes(format, inner);
  assert(Number.isInteger(numRows), `${data.length} bytes are no whole rows of ${inner} in ${format}`);
  return numRows;
}

/** As weight_format.ts has them. */
export interface StoredIntegers {
  readonly data: Uint8Array;
  readonly scales: Uint8Array;
}

/** What is stored in the very format that is wanted, or fits into it as it is; undefined when it has to be made. */
export function storedIntegers(format: WeightFormat, rows: StoredRows, inner: number): StoredIntegers | undefined {
  if (format !== 'int8' && format !== 'int4') return undefined;
  const isWidened = format === 'int8' && rows.format === 'int4';
  if (rows.format !== format && !isWidened) return undefined;
  const { data, scales } = rows;
  const scaleBytes = numStored(rows, inner) * scalesPerRow(format, inner) * 2;
  assert(scales?.length === scaleBytes, `${rows.format} of ${inner} inputs comes with ${scaleBytes} bytes of scales`);
  return { data: isWidened ? widened(data) : data, scales };
}

const LOW_NIBBLES = 0x0f0f0f0f;

/** int4 as int8, the same integers under the same scales. */
function widened(data: Uint8Array): Uint8Array {
  const words = new Uint32Array(Uint8Array.from(data).buffer);
  const out = new Uint32Array(2 * words.length);
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    out[2 * i] = centred(word & LOW_NIBBLES);
    out[2 * i + 1] = centred((word >>> 4) & LOW_NIBBLES);
  }
  return new Uint8Array(out.buffer);
}

/** Four bytes below 16, each less 8: no byte borrows from another. */
function centred(bytes: number): number {
  return ((bytes | 0x80808080) - 0x08080808) ^ 0x80808080;
}

/** Decodes slice after slice into one array: a new one for each would take longer than the decoding. */
export class RowDecoder {
  #floats = new Float32Array(0);

  /** [rows][inner] f32, valid until the next call; may be a view of what was stored. */
  floats(rows: StoredRows, inner: number): Float32Array {
    const { format, data } = rows;
    const numValues = numStored(rows, inner) * inner;
    if (format === 'f32') {
      if (data.byteOffset % 4 === 0) return new Float32Array(data.buffer, data.byteOffset, numValues);
      return new Float32Array(Uint8Array.from(data).buffer);
    }
    const integers = format === 'int8' || format === 'int4' ? storedIntegers(format, rows, inner) : undefined;
    if (integers) return unpackRows(format as 'int8' | 'int4', asPacked(integers), inner);
    const bytes = data.byteOffset % 2 === 0 ? data : Uint8Array.from(data);
    const halves = new Uint16Array(bytes.buffer, bytes.byteOffset, numValues);
    if (this.#floats.length < numValues) this.#floats = new Float32Array(numValues);
    const out = this.#floats.subarray(0, numValues);
    if (format === 'bf16') {
      const bits = new Uint32Array(out.buffer, 0, numValues);
      for (let i = 0; i < numValues; i++) bits[i] = halves[i]! << 16;
    } else {
      const table = (f16Table ??= makeF16Table());
      for (let i = 0; i < numValues; i++) out[i] = table[halves[i]!]!;
    }
    return out;
  }

  /** Values of a vector, each with `offset` added; nobody else's. */
  vector(rows: StoredRows, offset = 0): Float32Array<ArrayBuffer> {
    return Float32Array.from(this.floats(rows, 1), (value) => value + offset);
  }

  /** In the format that a device multiplies: integers of the same format are not rounded again. */
  packed(format: WeightFormat, rows: StoredRows, inner: number): PackedRows {
    const integers = storedIntegers(format, rows, inner);
    return integers ? asPacked(integers) : packRows(format, this.floats(rows, inner), inner);
  }
}

/** Copies, since a file's bytes may lie anywhere; not by `slice`, which of a Buffer is a view. */
function asPacked({ data, scales }: StoredIntegers): PackedRows {
  return {
    data: new Uint32Array(Uint8Array.from(data).buffer),
    scales: new Uint16Array(Uint8Array.from(scales).buffer),
  };
}

let f16Table: Float32Array | undefined;

/** Every f16 as f32; 256 KiB, made when the first f16 tensor is read. */
function makeF16Table(): Float32Array {
  return Float32Array.from({ length: 65_536 }, (_, half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 0x1f;
    const mantissa = half & 0x3ff;
    if (exponent === 0) return sign * mantissa * 2 ** -24;
    if (exponent === 31) return mantissa ? NaN : sign * Infinity;
    return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
  });
}
