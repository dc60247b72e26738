/**
 * How weights lie in memory, and which values they have: the same on every device, whatever it computes with.
 *
 *   f32    as the checkpoint has them
 *   f16    rounded to nearest, ties to even; beyond ±65504 saturated; below 2^-14 zero, because GPUs may flush subnormals
 *   int8   per output, groups of 32 inputs: q = round(w / scale) in [-127, 127], scale = f16(max |w| / 127)
 *   int4   same groups: q in [-8, 7], scale = f16(m / -8) where m is the value of largest magnitude (GGUF's Q4_0)
 *   uint4  same groups: scale · (q - zero), q in [0, 15], scale = f16((high - low) / 15), zero = round(-low / scale), where high and low
 *          are the extremes of the group's values and 0; zeros are f16, because files may have fractional ones
 *
 * Rows are padded with zeros to whole groups. A scale is never subnormal either. Packed rows, little-endian:
 * f16 two in a u32; int8 four in a u32; int4 and uint4 eight in a u32, so that its low nibbles are inputs [8j, 8j + 4) and its high
 * nibbles [8j + 4, 8j + 8). Scales [outputs][groups padded to even] f16; of uint4 [outputs][groups][scale, zero] f16.
 */
import assert from 'node:assert/strict';

/** Storage formats that a device multiplies. */
export const weightFormats = ['f32', 'f16', 'int8', 'int4', 'uint4'] as const;
/** Storage format of a weight on a device; the header describes each layout. */
export type WeightFormat = (typeof weightFormats)[number];
/** Formats of quantised values in groups of 32 that share a scale. */
export type IntegerFormat = 'int8' | 'int4' | 'uint4';

/** Whether the format holds quantised values with scales. */
export function isInteger(format: WeightFormat): format is IntegerFormat {
  return format === 'int8' || format === 'int4' || format === 'uint4';
}

/** Inputs that share a scale. */
const GROUP_SIZE = 32;

const BITS: Readonly<Record<WeightFormat, number>> = { f32: 32, f16: 16, int8: 8, int4: 4, uint4: 4 };

/** Returns `inner` rounded up to whole groups of 32 inputs. */
export function paddedInner(inner: number): number {
  return Math.ceil(inner / GROUP_SIZE) * GROUP_SIZE;
}

/** Bytes of one output's inputs, without scales. */
export function rowBytes(format: WeightFormat, inner: number): number {
  return (paddedInner(inner) * BITS[format]) / 8;
}

/** f16 values from one output's scales to the next, zeros included; 0 for formats that have none. */
export function scalesPerRow(format: WeightFormat, inner: number): number {
  const groups = paddedInner(inner) / GROUP_SIZE;
  if (format === 'uint4') return 2 * groups;
  return format === 'int8' || format === 'int4' ? Math.ceil(groups / 2) * 2 : 0;
}

/** Rows of a weight in a storage format, as they are uploaded to a device. */
export interface PackedRows {
  /** [rows][rowBytes / 4] */
  readonly data: Uint32Array<ArrayBuffer>;
  /** [rows][scalesPerRow] f16; empty for formats without. */
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

/**
 * Returns the f16 bits of the group's scale, and the integer that stands for 0. A NaN, from a broken checkpoint, counts as 0: else it
 * would turn every value of the group into NaN.
 */
function scaleOf(format: IntegerFormat, group: Float32Array): { half: number; zero: number } {
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

function quantisedValue(format: IntegerFormat, value: number, scale: number, zero: number): number {
  // A NaN is 0.
  const q = Math.round(value / scale) || 0;
  if (format === 'uint4') return Math.max(0, Math.min(15, q + zero));
  return format === 'int8' ? Math.max(-127, Math.min(127, q)) : Math.max(-8, Math.min(7, q));
}

/** The smallest f16 that no GPU flushes to zero. */
export const MIN_NORMAL = 2 ** -14;
const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** Bits of the nearest f16, ties to even, saturating; 0 below the normal range. */
export function toNormalHalf(value: number): number {
  float[0] = value;
  const bits = word[0]!;
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477ff000) return sign | 0x7bff;
  if (magnitude < 0x38800000) return sign;
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}

/** Whether every GPU reads this f16 at its value: neither infinity nor NaN, and no subnormal, which GPUs may flush to zero. */
export function isValidHalf(half: number): boolean {
  const exponent = half & 0x7c00;
  return exponent !== 0x7c00 && (exponent !== 0 || (half & 0x3ff) === 0);
}

/** The value of a normal f16 or zero. */
export function fromHalf(half: number): number {
  const magnitude = half & 0x7fff;
  word[0] = magnitude === 0 ? (half & 0x8000) << 16 : ((half & 0x8000) << 16) | ((magnitude << 13) + 0x38000000);
  return float[0]!;
}
