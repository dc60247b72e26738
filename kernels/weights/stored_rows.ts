/** Rows of a tensor as a file stores them: integers of the very format that a device computes with are taken as they are, all else is decoded. */
import assert from 'node:assert/strict';
import { isTable } from './code_tables.ts';
import { isValidHalf } from './normal_half.ts';
import { blockRowBytes, blockValues, isBlocks, nibblesOfBlock, viewOf, type BlockFormat } from './stored_blocks.ts';
import { codeRows, codeValues, isCodes, tableOf } from './stored_codes.ts';
import { isColumns, rowsOfColumns, type ColumnFormat } from './stored_columns.ts';
import {
  isInteger,
  packRows,
  rowBytes,
  scalesPerRow,
  unpackRows,
  type IntegerFormat,
  type PackedRows,
  type WeightFormat,
} from './weight_format.ts';
import { uint4Rows, type NibbleFormat } from './zero_points.ts';

/**
 * Format of stored rows, little-endian: integers and codes are laid out as in weight_format.ts, GGUF's blocks as in stored_blocks.ts,
 * gptq and awq as in stored_columns.ts, mxfp4_pairs as in stored_codes.ts, the others value by value.
 */
type StoredFormat = WeightFormat | 'bf16' | BlockFormat | ColumnFormat | 'mxfp4_pairs';

/** Consecutive rows of a tensor in the format in which the file stores them. */
export interface StoredRows {
  /** Index of the first row, counted from the first row that was requested. */
  readonly rowStart: number;
  readonly format: StoredFormat;
  /** Bytes of whole rows; the source of the rows defines how long they stay valid. */
  readonly data: Uint8Array;
  /** Scales of integers and codes: [rows][scalesPerRow]. For gptq, awq and mxfp4_pairs: in the file's own layout. */
  readonly scales?: Uint8Array;
  /** Zero points of gptq and awq rows in the file's own layout; absent when all are 8. */
  readonly zeros?: Uint8Array;
}

/** Returns f32 values as stored rows whose first has index `rowStart`; the bytes are not copied. */
export function floatRows(values: Float32Array, rowStart = 0): StoredRows {
  return { rowStart, format: 'f32', data: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) };
}

/** Returns the bytes of one row of `inner` values, without scales that are stored separately. */
export function storedBytes(format: StoredFormat, inner: number): number {
  if (isBlocks(format)) return blockRowBytes(format, inner);
  if (format === 'bf16') return inner * 2;
  if (format === 'gptq' || format === 'awq' || format === 'mxfp4_pairs') return inner / 2;
  return isInteger(format) ? rowBytes(format, inner) : inner * (format === 'f32' ? 4 : 2);
}

/** Returns the number of rows in `data`. @throws AssertionError when the bytes are not whole rows. */
export function numStored({ format, data }: StoredRows, inner: number): number {
  const numRows = data.length / storedBytes(format, inner);
  assert(Number.isInteger(numRows), `${data.length} bytes are no whole rows of ${inner} in ${format}`);
  return numRows;
}

/** Quantised values and their scales, laid out as weight_format.ts describes. */
interface StoredIntegers {
  readonly data: Uint8Array;
  readonly scales: Uint8Array;
}

/** Storage formats that can hold the integers of each stored format unchanged. */
const FITTING: Readonly<Partial<Record<StoredFormat, readonly WeightFormat[]>>> = {
  int8: ['int8'],
  q8_0: ['int8'],
  int4: ['int4', 'int8', 'uint4'],
  q4_0: ['int4', 'int8', 'uint4'],
  uint4: ['uint4'],
  q4_1: ['uint4'],
  q4_k: ['uint4'],
};

/** Whether the stored integers can be kept unchanged in the storage format `wanted`. */
export function fitsInto(stored: StoredRows, wanted: WeightFormat): boolean {
  if (isCodes(stored.format)) return tableOf(stored.format) === wanted;
  const format = !isColumns(stored) ? stored.format : stored.zeros ? 'uint4' : 'int4';
  return FITTING[format]?.includes(wanted) === true;
}

/**
 * Returns the rows packed in `format` when the stored quantised values can be kept ({@link fitsInto}); undefined when they must be
 * quantised anew.
 */
function storedIntegers(format: WeightFormat, stored: StoredRows, inner: number): PackedRows | undefined {
  if (!fitsInto(stored, format)) return undefined;
  if (isCodes(stored.format)) return codeRows({ ...stored, format: stored.format }, numStored(stored, inner), inner);
  if (isColumns(stored)) return storedIntegers(format, { rowStart: 0, ...rowsOfColumns(stored, inner) }, inner);
  if (format === 'uint4') {
    const { format: nibbles, data, scales } = stored;
    return uint4Rows(nibbles as NibbleFormat, data, scales, numStored(stored, inner), inner);
  }
  const rows = stored.format === 'q8_0' || stored.format === 'q4_0' ? fromBlocks(stored.format, stored, inner) : stored;
  const isWidened = format === 'int8' && rows.format === 'int4';
  const { data, scales } = rows;
  const scaleBytes = numStored(rows, inner) * scalesPerRow(format, inner) * 2;
  assert(scales?.length === scaleBytes, `${rows.format} of ${inner} inputs comes with ${scaleBytes} bytes of scales`);
  const own = rows.format === 'int4' ? 'int4' : 'int8';
  const normalised = withNormalScales(own, { data, scales }, inner);
  return asPacked(isWidened ? { data: widened(normalised.data), scales: normalised.scales } : normalised);
}

/** The smallest f16 that no GPU flushes to zero. */
const MIN_NORMAL = 0x0400;

/**
 * Replaces subnormal scales, which GPUs may flush to zero, by the smallest normal f16 and scales their integers down; an infinite or
 * NaN scale becomes 0.
 */
function withNormalScales(format: 'int8' | 'int4', { data, scales }: StoredIntegers, inner: number): StoredIntegers {
  const halves = new Uint16Array(Uint8Array.from(scales).buffer);
  if (halves.every(isValidHalf)) return { data, scales };
  const mended = Int8Array.from(data);
  const [perRow, groups, bytes] = [scalesPerRow(format, inner), Math.ceil(inner / 32), format === 'int8' ? 32 : 16];
  halves.forEach((half, at) => {
    const group = Math.floor(at / perRow) * groups + (at % perRow);
    if (isValidHalf(half) || at % perRow >= groups) return;
    const isSmall = (half & 0x7c00) === 0;
    if (isSmall) rescale(format, mended.subarray(group * bytes, (group + 1) * bytes), (half & 0x3ff) / 1_024);
    halves[at] = isSmall ? (half & 0x8000) | MIN_NORMAL : 0;
  });
  return { data: new Uint8Array(mended.buffer), scales: new Uint8Array(halves.buffer) };
}

function fromBlocks(format: 'q8_0' | 'q4_0', { data: blocks, rowStart }: StoredRows, inner: number): StoredRows {
  const own = format === 'q8_0' ? 'int8' : 'int4';
  const groups = inner / 32;
  const [perRow, bytes] = [scalesPerRow(own, inner), format === 'q8_0' ? 34 : 18];
  const numGroups = blocks.length / bytes;
  const words = (bytes - 2) / 4;
  const out = new Uint32Array(numGroups * words);
  const scales = new Uint16Array((numGroups / groups) * perRow);
  const view = viewOf(blocks);
  for (let block = 0, at = 0, to = 0; at < blocks.length; block++, at += bytes, to += words) {
    if (own === 'int4') nibblesOfBlock(view, at + 2, out, to);
    else for (let i = 0; i < 8; i++) out[to + i] = view.getUint32(at + 2 + 4 * i, true);
    scales[Math.floor(block / groups) * perRow + (block % groups)] = view.getUint16(at, true);
  }
  return { rowStart, format: own, data: new Uint8Array(out.buffer), scales: new Uint8Array(scales.buffer) };
}

function rescale(format: 'int8' | 'int4', bytes: Int8Array, factor: number): void {
  const scaled = (q: number): number => Math.floor(q * factor + 0.5);
  bytes.forEach((both, i) => {
    const nibble = (q: number): number => scaled((q & 15) - 8) + 8;
    bytes[i] = format === 'int8' ? scaled(both) : nibble(both) | (nibble(both >> 4) << 4);
  });
}

const LOW_NIBBLES = 0x0f0f0f0f;

/** Returns int4 values as int8: the same integers under the same scales. */
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

/** Integer format that holds each of these formats unchanged; RowDecoder.floats decodes by way of it. */
const OWN: Readonly<Record<IntegerFormat | 'q8_0' | 'q4_0', IntegerFormat>> = {
  int8: 'int8',
  int4: 'int4',
  uint4: 'uint4',
  mxfp4: 'mxfp4',
  iq4: 'iq4',
  q8_0: 'int8',
  q4_0: 'int4',
};

/** Decodes slice after slice into one array: a new one for each would take longer than the decoding. */
export class RowDecoder {
  #floats = new Float32Array(0);

  /** Returns the values as [rows][inner] f32, valid until the next call; may be a view of the stored bytes. */
  floats(rows: StoredRows, inner: number): Float32Array {
    if (isColumns(rows)) return this.floats({ rowStart: 0, ...rowsOfColumns(rows, inner) }, inner);
    const { format, data } = rows;
    const numValues = numStored(rows, inner) * inner;
    if (format === 'f32') {
      if (data.byteOffset % 4 === 0) return new Float32Array(data.buffer, data.byteOffset, numValues);
      return new Float32Array(Uint8Array.from(data).buffer);
    }
    if (format === 'q4_1' || format === 'q4_k' || format === 'q5_k') {
      blockValues(format, data, this.#room(numValues), (half) => (f16Table ??= makeF16Table())[half]!);
      return this.#room(numValues);
    }
    if (isCodes(format) && !isTable(format)) {
      codeValues({ ...rows, format }, numValues, this.#room(numValues));
      return this.#room(numValues);
    }
    if (format !== 'f16' && format !== 'bf16') {
      const own = OWN[format as keyof typeof OWN];
      const integers = storedIntegers(own, rows, inner);
      assert(integers);
      return unpackRows(own, integers, inner);
    }
    const bytes = data.byteOffset % 2 === 0 ? data : Uint8Array.from(data);
    const halves = new Uint16Array(bytes.buffer, bytes.byteOffset, numValues);
    const out = this.#room(numValues);
    if (format === 'bf16') {
      const bits = new Uint32Array(out.buffer, 0, numValues);
      for (let i = 0; i < numValues; i++) bits[i] = halves[i]! << 16;
    } else {
      const table = (f16Table ??= makeF16Table());
      for (let i = 0; i < numValues; i++) out[i] = table[halves[i]!]!;
    }
    return out;
  }

  #room(numValues: number): Float32Array<ArrayBuffer> {
    if (this.#floats.length < numValues) this.#floats = new Float32Array(numValues);
    return this.#floats.subarray(0, numValues);
  }

  /** Returns the values of a vector, each with `offset` added, in a new array. */
  vector(rows: StoredRows, offset = 0): Float32Array<ArrayBuffer> {
    return Float32Array.from(this.floats(rows, 1), (value) => value + offset);
  }

  /** Returns the rows in a storage format; stored integers that fit it ({@link fitsInto}) are not rounded again. */
  packed(format: WeightFormat, rows: StoredRows, inner: number): PackedRows {
    return storedIntegers(format, rows, inner) ?? packRows(format, this.floats(rows, inner), inner);
  }
}

/** Copies the bytes, because in a file they may be unaligned; not by `slice`, which returns a view for a Buffer. */
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
