/**
 * How weights lie in memory, and which values they have: the same on every device, whatever it computes with.
 *
 *   f32    as the checkpoint has them
 *   f16    rounded to nearest, ties to even; beyond ±65504 saturated; below 2^-14 zero, because GPUs may flush subnormals
 *   int8   per output, groups of 32 inputs: q = round(w / scale) in [-127, 127], scale = f16(max |w| / 127)
 *   int4   same groups: q in [-8, 7], scale = f16(m / -8) where m is the value of largest magnitude (GGUF's Q4_0)
 *   uint4  same groups: scale · (q - zero), q in [0, 15], scale = f16((high - low) / 15), zero = round(-low / scale), where high and low
 *          are the extremes of the group's values and 0; zeros are f16, because files may have fractional ones
 *   mxfp4, iq4  same groups: scale · table[q], q in [0, 15]; code_tables.ts has the tables and what a scale is
 *
 * Rows are padded with zeros to whole groups. A scale is never subnormal either. Packed rows, little-endian:
 * f16 two in a u32; int8 four in a u32; four-bit formats eight in a u32, so that its low nibbles are inputs [8j, 8j + 4) and its high
 * nibbles [8j + 4, 8j + 8). Scales [outputs][groups padded to even] f16; of uint4 [outputs][groups][scale, zero] f16; of
 * mxfp4 [outputs][groups padded to fours] u8, two in 16 bits.
 */
import assert from 'node:assert/strict';
import { codeTables, isTable, nearestCode, scaleOfCodes, storedScaleOf, type TableFormat } from './code_tables.ts';
import { fromHalf, MIN_NORMAL, toNormalHalf } from './normal_half.ts';

/** Storage formats that a device multiplies. */
export const weightFormats = ['f32', 'f16', 'int8', 'int4', 'uint4', 'mxfp4', 'iq4'] as const;
/** Storage format of a weight on a device; the header describes each layout. */
export type WeightFormat = (typeof weightFormats)[number];
/** Formats of quantised values in groups of 32 that share a scale. */
export type IntegerFormat = 'int8' | 'int4' | 'uint4' | TableFormat;

/** Whether the format holds quantised values with scales. */
export function isInteger(format: WeightFormat): format is IntegerFormat {
  return format !== 'f32' && format !== 'f16';
}

/** Inputs that share a scale. */
const GROUP_SIZE = 32;

const BITS: Readonly<Record<WeightFormat, number>> = { f32: 32, f16: 16, int8: 8, int4: 4, uint4: 4, mxfp4: 4, iq4: 4 };

/** Returns `inner` rounded up to whole groups of 32 inputs. */
export function paddedInner(inner: number): number {
  return Math.ceil(inner / GROUP_SIZE) * GROUP_SIZE;
}

/** Bytes of one output's inputs, without scales. */
export function rowBytes(format: WeightFormat, inner: number): number {
  return (paddedInner(inner) * BITS[format]) / 8;
}

/** Values of 16 bits from one output's scales to the next, zeros included; 0 for formats that have none. */
export function scalesPerRow(format: WeightFormat, inner: number): number {
  const groups = paddedInner(inner) / GROUP_SIZE;
  if (format === 'uint4') return 2 * groups;
  if (format === 'mxfp4') return Math.ceil(groups / 4) * 2;
  return isInteger(format) ? Math.ceil(groups / 2) * 2 : 0;
}

/** Rows of a weight in a storage format, as they are uploaded to a device. */
export interface PackedRows {
  /** [rows][rowBytes / 4] */
  readonly data: Uint32Array<ArrayBuffer>;
  /** [rows][scalesPerRow] f16, or pairs of bytes; empty for formats without. */
  readonly scales: Uint16Array<ArrayBuffer>;
}

/** Packs `values`, [rows][inner] f32, in a storage format. @throws AssertionError when they are not whole rows. */
export function packRows(format: WeightFormat, values: Float32Array, inner: number): PackedRows {
  const numRows = values.length / inner;
  assert(Number.isInteger(numRows), `${values.length} values are no whole rows of ${inner}`);
  const rowWords = rowBytes(format, inner) / 4;
  const data = new Uint32Array(numRows * rowWords);
  const perRow = scalesPerRow(format, inner);
  const scales = new Uint16Array(numRows * perRow);
  for (let row = 0; row < numRows; row++) {
    const from = values.subarray(row * inner, (row + 1) * inner);
    const to = data.subarray(row * rowWords, (row + 1) * rowWords);
    if (format === 'f32') new Float32Array(to.buffer, to.byteOffset, to.length).set(from);
    else if (format === 'f16') packHalves(from, to);
    else quantise(format, from, to, scales.subarray(row * perRow, (row + 1) * perRow));
  }
  return { data, scales };
}

/** The values of packed integers, [rows][inner] f32. */
export function unpackRows(format: IntegerFormat, { data, scales }: PackedRows, inner: number): Float32Array {
  const rowWords = rowBytes(format, inner) / 4;
  const perRow = scalesPerRow(format, inner);
  const numRows = data.length / rowWords;
  const out = new Float32Array(numRows * inner);
  for (let row = 0; row < numRows; row++) {
    for (let k = 0; k < inner; k++) {
      const group = Math.floor(k / GROUP_SIZE);
      const at = row * perRow + (format === 'uint4' ? 2 * group : group);
      const word = (at: number): number => data[row * rowWords + at]!;
      const nibble = (word(k >> 3) >> (8 * (k & 3) + (k & 4))) & 15;
      if (isTable(format)) {
        const scale = scaleOfCodes(format, storedAt(format, scales, row * perRow, group));
        out[row * inner + k] = scale * codeTables[format][nibble]! + 0;
        continue;
      }
      const q =
        format === 'int8'
          ? (word(k >> 2) << (24 - 8 * (k & 3))) >> 24
          : nibble - (format === 'int4' ? 8 : fromHalf(scales[at + 1]!));
      // The 0 makes a plain zero of a negative one.
      out[row * inner + k] = q * fromHalf(scales[at]!) + 0;
    }
  }
  return out;
}

/** Rounds each value, in place, to the one that {@link packRows} stores: the reference that devices are compared with. */
export function roundRows(format: WeightFormat, values: Float32Array, inner: number): void {
  if (format === 'f32') return;
  if (format === 'f16') {
    for (let i = 0; i < values.length; i++) values[i] = fromHalf(toNormalHalf(values[i]!));
    return;
  }
  for (let start = 0; start < values.length; start += inner) {
    for (let k = 0; k < inner; k += GROUP_SIZE) {
      const group = values.subarray(start + k, start + Math.min(inner, k + GROUP_SIZE));
      if (isTable(format)) {
        const scale = scaleOfCodes(format, storedScaleOf(format, group));
        for (let i = 0; i < group.length; i++)
          group[i] = scale * codeTables[format][codeOf(format, group[i]!, scale)]! + 0;
        continue;
      }
      const { half, zero } = scaleOf(format, group);
      const scale = fromHalf(half);
      // The 0 makes a plain zero of a negative one.
      for (let i = 0; i < group.length; i++)
        group[i] = (quantisedValue(format, group[i]!, scale, zero) - zero) * scale + 0;
    }
  }
}

function packHalves(from: Float32Array, to: Uint32Array): void {
  for (let i = 0; i < from.length; i++) {
    const half = toNormalHalf(from[i]!);
    to[i >> 1]! |= i & 1 ? half << 16 : half;
  }
}

function quantise(format: IntegerFormat, from: Float32Array, to: Uint32Array, scales: Uint16Array): void {
  for (let group = 0; group * GROUP_SIZE < from.length; group++) {
    const start = group * GROUP_SIZE;
    const values = from.subarray(start, start + GROUP_SIZE);
    if (isTable(format)) {
      const stored = storedScaleOf(format, values);
      if (format === 'mxfp4') new Uint8Array(scales.buffer, scales.byteOffset)[group] = stored;
      else scales[group] = stored;
      for (let i = 0; i < GROUP_SIZE; i++) {
        const k = start + i;
        to[k >> 3]! |= codeOf(format, values[i] ?? 0, scaleOfCodes(format, stored)) << (8 * (k & 3) + (k & 4));
      }
      continue;
    }
    const { half, zero } = scaleOf(format, values);
    const scale = fromHalf(half);
    if (format === 'uint4') scales.set([half, toNormalHalf(zero)], 2 * group);
    else scales[group] = half;
    for (let i = 0; i < GROUP_SIZE; i++) {
      const q = quantisedValue(format, values[i] ?? 0, scale, zero);
      const k = start + i;
      if (format === 'int8') to[k >> 2]! |= (q & 0xff) << (8 * (k & 3));
      else to[k >> 3]! |= (format === 'int4' ? q + 8 : q) << (8 * (k & 3) + (k & 4));
    }
  }
}

/** Returns the code of the table's integer nearest to `value`; a NaN is 0, and so is all where the scale is 0. */
function codeOf(format: TableFormat, value: number, scale: number): number {
  return nearestCode(format, scale === 0 ? 0 : value / scale || 0);
}

/** Returns the stored scale of a group of table codes, in the row whose scales begin at index `row`. */
function storedAt(format: TableFormat, scales: Uint16Array, row: number, group: number): number {
  if (format === 'iq4') return scales[row + group]!;
  return (scales[row + (group >> 1)]! >> (8 * (group & 1))) & 255;
}

/**
 * Returns the f16 bits of the group's scale, and the integer that stands for 0. A NaN, from a broken checkpoint, counts as 0: else it
 * would turn every value of the group into NaN.
 */
function scaleOf(format: Exclude<IntegerFormat, TableFormat>, group: Float32Array): { half: number; zero: number } {
  if (format === 'uint4') {
    const [low, high] = group.reduce(([low, high], value) => [value < low ? value : low, value > high ? value : high], [
      0, 0,
    ] as [number, number]);
    const exact = (high - low) / 15;
    const half = exact < MIN_NORMAL ? 0x0400 : toNormalHalf(exact);
    return { half, zero: Math.min(15, Math.round((0 - low) / fromHalf(half))) };
  }
  let extreme = 0;
  for (const value of group) if (Math.abs(value) > Math.abs(extreme)) extreme = value;
  const exact = format === 'int8' ? Math.abs(extreme) / 127 : extreme / -8;
  if (Math.abs(exact) < MIN_NORMAL) return { half: exact < 0 ? 0x8400 : 0x0400, zero: 0 };
  return { half: toNormalHalf(exact), zero: 0 };
}

function quantisedValue(
  format: Exclude<IntegerFormat, TableFormat>,
  value: number,
  scale: number,
  zero: number,
): number {
  // A NaN is 0.
  const q = Math.round(value / scale) || 0;
  if (format === 'uint4') return Math.max(0, Math.min(15, q + zero));
  return format === 'int8' ? Math.max(-127, Math.min(127, q)) : Math.max(-8, Math.min(7, q));
}
