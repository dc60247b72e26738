/** Instructions with which products of integers are computed; all give the same bits (kernels/wasm/products.ts). */
import { INT4, INT8, IQ4, MXFP4, UINT4 } from './panels.as';

/** Products of i16 pairs, in every runtime with SIMD. */
export const PLAIN: u32 = 0;
/** Products of i8 by seven bits added to i16, for formats of four bits; needs relaxed SIMD. */
export const RELAXED: u32 = 1;
/** Dot products of four i8 by four bytes added to i32, where the runtime takes the bytes as 0 to 255. */
export const DOT_UNSIGNED: u32 = 2;
/** The same where the runtime takes the bytes as signed. */
export const DOT_SIGNED: u32 = 3;

/** Whether these instructions read quantised rows of this format as bytes; else as i16. */
// @ts-ignore: decorator
@inline
export function reads_bytes(format: u32, instructions: u32): bool {
  if (!ASC_FEATURE_RELAXED_SIMD || instructions == PLAIN) return false;
  return instructions >= DOT_UNSIGNED || format == INT4 || format == UINT4 || format == MXFP4;
}

/** Returns how much higher than their values these instructions multiply the integers of a format. */
// @ts-ignore: decorator
@inline
export function raised_by(format: u32, instructions: u32): i32 {
  if (format == INT8 || format == IQ4) return instructions == DOT_SIGNED ? 0 : 128;
  if (format == MXFP4) return 12;
  return format == INT4 ? 8 : 0;
}

/**
 * Returns DOT_UNSIGNED or DOT_SIGNED where the runtime adds dot products of four bytes exactly in one of those ways, else 0.
 * `scratch`: room for 32 bytes.
 */
export function dot_instructions(scratch: usize): u32 {
  if (!ASC_FEATURE_RELAXED_SIMD) return 0;
  v128.store(scratch, i8x16.splat(127));
  v128.store(scratch, i8x16.splat(-1), 16);
  const sums = i32x4.relaxed_dot_i8x16_i7x16_add_s(v128.load(scratch), v128.load(scratch, 16), i32x4.splat(0));
  const sum = i32x4.extract_lane(sums, 0);
  if (sum == 4 * 127 * 255) return DOT_UNSIGNED;
  return sum == -4 * 127 ? DOT_SIGNED : 0;
}
