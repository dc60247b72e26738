/** Weights as dot products of bytes multiply them; see linear_dot.as.ts. `kind` and `isSigned` are compile-time constants. */
import { CODED, EXPONENT, ZEROED } from './int_groups.as';
import { INT4_GROUP, IQ4_GROUP, MXFP4_GROUP, UINT4_GROUP } from './panels.as';
import { integers_of_iq4, raised_iq4, raised_mxfp4 } from './table_codes.as';

/** Returns `sum` plus the dot products of four bytes each of `x` and `w`. */
// @ts-ignore: decorator
@inline
export function dot(x: v128, w: v128, sum: v128): v128 {
  return ASC_FEATURE_RELAXED_SIMD ? i32x4.relaxed_dot_i8x16_i7x16_add_s(x, w, sum) : sum;
}

/** Returns sixteen weights of int8 as the runtime multiplies them; they are stored plus 128. */
// @ts-ignore: decorator
@inline
export function int8_of(isSigned: i32, bytes: v128): v128 {
  return isSigned ? v128.xor(bytes, i8x16.splat(-128)) : bytes;
}

/** Returns what sixteen codes stand for, as the runtime multiplies it. */
// @ts-ignore: decorator
@inline
export function integers_of(kind: i32, isSigned: i32, codes: v128): v128 {
  if (kind == EXPONENT) return raised_mxfp4(codes);
  if (kind != CODED) return codes;
  return isSigned ? integers_of_iq4(codes) : raised_iq4(codes);
}

/** Returns the bytes of a panel's group in a format of four bits. */
// @ts-ignore: decorator
@inline
export function group_of(kind: i32): usize {
  if (kind == ZEROED) return UINT4_GROUP;
  if (kind == EXPONENT) return MXFP4_GROUP;
  return kind == CODED ? IQ4_GROUP : INT4_GROUP;
}
