/**
 * Four-bit codes of a table (mxfp4, iq4): the tables, the scales of a panel's group as f32, and groups unpacked to int8 for products
 * that read bytes. The reference is kernels/weights/code_tables.ts.
 */
import { IQ4, IQ4_GROUP, MXFP4_GROUP } from './panels.as';

/** Bytes of a group of codes unpacked to int8: eight scales f32, then 256 bytes. */
export const CODES_GROUP: usize = 288;
/** 2^106: 2^112, by which f16 read as f32 are too small, less the 2^6 that scales of iq4 count too much. */
const TWO_106: f32 = 81129638414606681695789005144064.0;

/** Returns the integers of mxfp4 for sixteen codes 0 to 15. */
// @ts-ignore: decorator
@inline
export function integers_of_mxfp4(codes: v128): v128 {
  return entries(i8x16(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), codes);
}

/** Returns the integers of mxfp4 plus 12, which are not negative, for sixteen codes 0 to 15. */
// @ts-ignore: decorator
@inline
export function raised_mxfp4(codes: v128): v128 {
  return entries(i8x16(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), codes);
}

/** Returns the integers of iq4 for sixteen codes 0 to 15. */
// @ts-ignore: decorator
@inline
export function integers_of_iq4(codes: v128): v128 {
  return entries(i8x16(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), codes);
}

/** Returns the integers of iq4 plus 128, as bytes without a sign, for sixteen codes 0 to 15. */
// @ts-ignore: decorator
@inline
export function raised_iq4(codes: v128): v128 {
  return entries(i8x16(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15), codes);
}

// @ts-ignore: decorator
@inline
function entries(table: v128, codes: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return i8x16.relaxed_swizzle(table, codes);
  return i8x16.swizzle(table, codes);
}

/** Returns four scales of mxfp4 as f32: each byte becomes the exponent of a power of two; 0 stays 0. */
// @ts-ignore: decorator
@inline
export function scales_of_mxfp4(at: usize): v128 {
  return i32x4.shl(i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(v128.load32_zero(at))), 23);
}

/** Returns four scales of iq4 as f32. */
// @ts-ignore: decorator
@inline
export function scales_of_iq4(at: usize): v128 {
  const small = v128.and(i32x4.shl(v128.load_ext<i16>(at), 13), i32x4.splat(0x8fffe000));
  return f32x4.mul(small, f32x4.splat(TWO_106));
}

/** Unpacks `count` groups of a panel of codes, of mxfp4 or iq4, to groups of CODES_GROUP bytes; integers are raised. */
export function codes_to_int8(format: u32, from: usize, to: usize, count: u32): void {
  if (format == IQ4) unpack(1, from, to, count);
  else unpack(0, from, to, count);
}

// @ts-ignore: decorator
@inline
function unpack(isIq4: i32, from: usize, to: usize, count: u32): void {
  const head: usize = isIq4 ? 16 : 8;
  for (const end = to + (count as usize) * CODES_GROUP; to < end; to += CODES_GROUP) {
    v128.store(to, isIq4 ? scales_of_iq4(from) : scales_of_mxfp4(from));
    v128.store(to, isIq4 ? scales_of_iq4(from + 8) : scales_of_mxfp4(from + 4), 16);
    for (let i: usize = 0; i < 128; i += 32) {
      // The bytes of a vector are four outputs, and its nibbles two quads of their inputs.
      const first = v128.load(from + head + i);
      const second = v128.load(from + head + i, 16);
      const at = to + 2 * i;
      v128.store(at, raised(isIq4, low_codes(first)), 32);
      v128.store(at, raised(isIq4, low_codes(second)), 48);
      v128.store(at, raised(isIq4, high_codes(first)), 64);
      v128.store(at, raised(isIq4, high_codes(second)), 80);
    }
    from += isIq4 ? IQ4_GROUP : MXFP4_GROUP;
  }
}

// @ts-ignore: decorator
@inline
function raised(isIq4: i32, codes: v128): v128 {
  return isIq4 ? raised_iq4(codes) : raised_mxfp4(codes);
}

/** Returns the low nibbles of sixteen bytes. */
// @ts-ignore: decorator
@inline
export function low_codes(bytes: v128): v128 {
  return v128.and(bytes, i8x16.splat(15));
}

/** Returns the high nibbles of sixteen bytes. */
// @ts-ignore: decorator
@inline
export function high_codes(bytes: v128): v128 {
  return v128.and(i16x8.shr_u(bytes, 4), i8x16.splat(15));
}
