/**
 * Final step of a group of 32 inputs in integer products: scales the exact integer sums and adds them to the f32 sums of the groups
 * before.
 */
import { load4_f16, madd } from './simd.as';
import { scales_of_iq4, scales_of_mxfp4 } from './table_codes.as';

/** Kind of weights: integers with a scale f16 alone (int8, int4). */
export const SIGNED: i32 = 0;
/** Kind of weights: integers 0 to 15 with a scale and a zero (uint4). */
export const ZEROED: i32 = 1;
/** Kind of weights: codes of mxfp4, with a scale u8. */
export const EXPONENT: i32 = 2;
/** Kind of weights: codes of iq4, with a scale f16 that counts 64 times. */
export const CODED: i32 = 3;
/** Kind of weights: codes of a table unpacked to bytes, with a scale f32. */
export const UNPACKED: i32 = 4;

/** Returns the bytes that precede the integers of a panel's group. */
// @ts-ignore: decorator
@inline
export function head_bytes(kind: i32): usize {
  if (kind == EXPONENT) return 8;
  return kind == ZEROED || kind == UNPACKED ? 32 : 16;
}

/** Returns the integer sums with which a row's group begins: its correction, for weights that are multiplied higher than they are. */
// @ts-ignore: decorator
@inline
export function first_sum(row: usize): v128 {
  return v128.load32_splat(row, 4);
}

/** Returns the scales of outputs 0 to 3 in the head of a panel's group; with `at` 4, of outputs 4 to 7. */
// @ts-ignore: decorator
@inline
export function scales_of(kind: i32, group: usize, at: usize): v128 {
  if (kind == UNPACKED) return v128.load(group + 4 * at);
  if (kind == EXPONENT) return scales_of_mxfp4(group + at);
  return kind == CODED ? scales_of_iq4(group + 2 * at) : load4_f16(group + 2 * at);
}

/** Returns the zeros of outputs 0 to 3, or with `at` 4 those of 4 to 7; for other kinds than ZEROED a value that is not used. */
// @ts-ignore: decorator
@inline
export function zeros_of(kind: i32, group: usize, at: usize): v128 {
  return kind == ZEROED ? load4_f16(group + 16 + 2 * at) : i32x4.splat(0);
}

/**
 * Adds a group's integer sums `a` and `b`, of outputs 0 to 3 and 4 to 7, to the f32 sums. `row` is the row's quantised group, which
 * begins with its scale. `kind` is a compile-time constant: for ZEROED, the zeros times the sum of the row's integers are subtracted.
 */
// @ts-ignore: decorator
@inline
export function add_group(kind: i32, sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, zeroA: v128, zeroB: v128, row: usize): void {
  if (kind == ZEROED) {
    less_zeros(sums, f32x4.convert_i32x4_s(a), scaleA, zeroA, row);
    less_zeros(sums + 16, f32x4.convert_i32x4_s(b), scaleB, zeroB, row);
    return;
  }
  const scale = v128.load32_splat(row);
  v128.store(sums, madd(f32x4.convert_i32x4_s(a), f32x4.mul(scaleA, scale), v128.load(sums)));
  v128.store(sums, madd(f32x4.convert_i32x4_s(b), f32x4.mul(scaleB, scale), v128.load(sums, 16)), 16);
}

/** Adds the integer sums of one group of a panel, which begins at `w` with its scales, like {@link add_group}. */
// @ts-ignore: decorator
@inline
export function add_panel(kind: i32, sums: usize, a: v128, b: v128, w: usize, row: usize): void {
  add_group(kind, sums, a, b, scales_of(kind, w, 0), scales_of(kind, w, 4), zeros_of(kind, w, 0), zeros_of(kind, w, 4), row);
}

/** Returns the i16 sums with which a row's group begins: for EXPONENT its corrections, by pairs of inputs, else 0. */
// @ts-ignore: decorator
@inline
export function first_halves(kind: i32, row: usize): v128 {
  return kind == EXPONENT ? v128.load32_splat(row, 12) : i16x8.splat(0);
}

/** Returns the integer sums of four outputs from i16 sums, two of each output. Those of SIGNED did not begin with their correction. */
// @ts-ignore: decorator
@inline
export function whole_sums(kind: i32, halves: v128, row: usize): v128 {
  const sums = i32x4.extadd_pairwise_i16x8_s(halves);
  return kind == SIGNED ? i32x4.add(sums, v128.load32_splat(row, 4)) : sums;
}

/** sums[4] += (dots - zeros · Σ q) · scale. The zeros' product is computed apart and subtracted, so that every path rounds alike (E2). */
// @ts-ignore: decorator
@inline
function less_zeros(sums: usize, dots: v128, scales: v128, zeros: v128, row: usize): void {
  const scale = f32x4.mul(scales, v128.load32_splat(row));
  const off = f32x4.mul(zeros, v128.load32_splat(row, 8));
  v128.store(sums, madd(f32x4.sub(dots, off), scale, v128.load(sums)));
}
