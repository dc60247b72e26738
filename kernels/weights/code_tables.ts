/**
 * Four-bit codes that stand for the entries of a table of integers, with a scale per group of 32 inputs.
 *
 *   mxfp4  OCP's MXFP4: e2m1 values, which are halves, doubled; bit 3 of a code is the sign. The scale is a byte: 0 for 0, else 2^(byte -
 *          127), so that bits 23 to 30 of an f32 are the byte. A file's exponent counts for values that are not doubled: it is 1 higher
 *   iq4    ggml's IQ4_NL and IQ4_XS: values that are denser around 0. The scale is an f16, 64 times what a table's integer counts, so that
 *          small weights need no subnormal
 */
import { fromAnyHalf, fromHalf, MIN_NORMAL, toNormalHalf } from './normal_half.ts';

/** Storage formats of codes of a table. */
export type TableFormat = 'mxfp4' | 'iq4';

/** The integers of each code. */
export const codeTables: Readonly<Record<TableFormat, readonly number[]>> = {
  mxfp4: [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
  iq4: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
};

/** Factor of the scales of iq4; a power of two, so that no bit changes. */
const IQ4_SCALING = 64;
/** Least power of two, as a byte, that a scale of mxfp4 may have, and the greatest. */
const [MIN_EXPONENT, MAX_EXPONENT] = [1, 253];

/** Whether the format holds codes of a table. */
export function isTable(format: string): format is TableFormat {
  return format === 'mxfp4' || format === 'iq4';
}

/** Returns what an integer of the table counts in a group with this stored scale. */
export function scaleOfCodes(format: TableFormat, stored: number): number {
  if (format === 'iq4') return fromHalf(stored) / IQ4_SCALING;
  return stored === 0 ? 0 : 2 ** (stored - 127);
}

/** Returns the scale to store with a group of values that are quantised anew. */
export function storedScaleOf(format: TableFormat, group: Float32Array): number {
  let extreme = 0;
  for (const value of group) if (Math.abs(value) > Math.abs(extreme)) extreme = value;
  if (format === 'mxfp4') {
    // The largest integer is 12: a magnitude of up to 12 · scale is held, and above 14 · scale the next power of two is nearer.
    const exponent = Math.ceil(Math.log2(Math.abs(extreme) / 14)) + 127;
    return extreme === 0 ? MIN_EXPONENT : Math.max(MIN_EXPONENT, Math.min(MAX_EXPONENT, exponent));
  }
  const exact = (IQ4_SCALING * extreme) / codeTables.iq4[0]!;
  return Math.abs(exact) < MIN_NORMAL ? 0 : toNormalHalf(exact);
}

/** Returns the code of the table's integer that is nearest to `value`; the lower one of two. */
export function nearestCode(format: TableFormat, value: number): number {
  let best = 0;
  const table = codeTables[format];
  for (let code = 1; code < table.length; code++)
    if (Math.abs(table[code]! - value) < Math.abs(table[best]! - value)) best = code;
  return best;
}

/** Returns the stored scale of mxfp4 for a file's exponent, e8m0; 0, for a value of 0, for NaN and what no f32 holds as normal. */
export function storedExponent(exponent: number): number {
  return exponent === 255 ? 0 : Math.max(0, exponent - 1);
}

/** Returns the stored scale of iq4 for the scale of a group in a file, and 0 where it is not finite or too small. */
export function storedIq4Scale(scale: number): number {
  return Number.isFinite(scale) ? toNormalHalf(IQ4_SCALING * scale) : 0;
}

/** Returns the value of an f16 as a file may have it; NaN for infinities. */
export function halfOfFile(half: number): number {
  return (half & 0x7c00) === 0x7c00 ? NaN : fromAnyHalf(half);
}
