/**
 * Final step of a group of 32 inputs in integer products: scales the exact integer sums and adds them to the f32 sums of the groups
 * before.
 */
import { Q_GROUP_BYTES } from './quantise.as';
import { load4_f16, madd } from './simd.as';
import { scales_of_mxfp4 } from './table_codes.as';

/** Kind of weights: integers with a scale alone (int8, int4). */
export const SIGNED: i32 = 0;
/** Kind of weights: integers 0 to 15 with a scale and a zero (uint4). */
export const ZEROED: i32 = 1;
/** Kind of weights: codes of a table; in groups that are unpacked, integers with a scale that is f32. */
export const TABLED: i32 = 2;

/** Returns the scales of outputs 0 to 3 in the head of a panel's group; with `at` 4, of outputs 4 to 7. */
// @ts-ignore: decorator
@inline
export function scales_of(kind: i32, isUnpacked: i32, group: usize, at: usize): v128 {
  if (kind != TABLED) return load4_f16(group + 2 * at);
  return isUnpacked ? v128.load(group + 4 * at) : scales_of_mxfp4(group + at);
}

/**
 * Adds a group's integer sums `a` and `b`, of outputs 0 to 3 and 4 to 7, to the f32 sums. The row's quantised group ends at `end` and
 * begins Q_GROUP_BYTES before, with its scale, corrections and sum of integers. `kind` is a compile-time constant: for ZEROED, the zeros
 * times the sum of the row's integers are subtracted.
 */
// @ts-ignore: decorator
@inline
export function add_group(kind: i32, sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, zeroA: v128, zeroB: v128, end: usize): void {
  if (kind == ZEROED) {
    less_zeros(sums, f32x4.convert_i32x4_s(a), scaleA, zeroA, end);
    less_zeros(sums + 16, f32x4.convert_i32x4_s(b), scaleB, zeroB, end);
    return;
  }
  const scale = v128.load32_splat(end - Q_GROUP_BYTES);
  v128.store(sums, madd(f32x4.convert_i32x4_s(a), f32x4.mul(scaleA, scale), v128.load(sums)));
  v128.store(sums, madd(f32x4.convert_i32x4_s(b), f32x4.mul(scaleB, scale), v128.load(sums, 16)), 16);
}

/** Returns the i16 sums with which a row's group begins: for TABLED its correction at byte `at` of its head, else 0. */
// @ts-ignore: decorator
@inline
export function first_sum(kind: i32, group: usize, at: usize): v128 {
  return kind == TABLED ? v128.load16_splat(group + at) : i16x8.splat(0);
}

/** Returns the sums of outputs 0 to 3 as f32: lanes 0 to 3 of two i16 partial sums, plus `correction`. */
// @ts-ignore: decorator
@inline
function low_sums(a: v128, b: v128, correction: v128): v128 {
  const sum = i32x4.add(i32x4.extend_low_i16x8_s(a), i32x4.extend_low_i16x8_s(b));
  return f32x4.convert_i32x4_s(i32x4.add(sum, correction));
}

// @ts-ignore: decorator
@inline
function high_sums(a: v128, b: v128, correction: v128): v128 {
  const sum = i32x4.add(i32x4.extend_high_i16x8_s(a), i32x4.extend_high_i16x8_s(b));
  return f32x4.convert_i32x4_s(i32x4.add(sum, correction));
}

/**
 * Adds a group like {@link add_group}, from i16 sums combined by {@link low_sums} and {@link high_sums}. For SIGNED (int4) the row's
 * correction -8 · Σ q is added, because stored integers are 8 too high; the sums of TABLED began with their corrections.
 */
// @ts-ignore: decorator
@inline
export function add_halves(kind: i32, sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, zeroA: v128, zeroB: v128, end: usize): void {
  if (kind == ZEROED) {
    const none = i32x4.splat(0);
    less_zeros(sums, low_sums(a, b, none), scaleA, zeroA, end);
    less_zeros(sums + 16, high_sums(a, b, none), scaleB, zeroB, end);
    return;
  }
  const scale = v128.load32_splat(end - Q_GROUP_BYTES);
  const correction = kind == TABLED ? i32x4.splat(0) : v128.load32_splat(end - Q_GROUP_BYTES, 4);
  v128.store(sums, madd(low_sums(a, b, correction), f32x4.mul(scaleA, scale), v128.load(sums)));
  v128.store(sums, madd(high_sums(a, b, correction), f32x4.mul(scaleB, scale), v128.load(sums, 16)), 16);
}

/** sums[4] += (dots - zeros · Σ q) · scale. The zeros' product is computed apart and subtracted, so that every path rounds alike (E2). */
// @ts-ignore: decorator
@inline
function less_zeros(sums: usize, dots: v128, scales: v128, zeros: v128, end: usize): void {
  const scale = f32x4.mul(scales, v128.load32_splat(end - Q_GROUP_BYTES));
  const off = f32x4.mul(zeros, v128.load32_splat(end - Q_GROUP_BYTES, 8));
  v128.store(sums, madd(f32x4.sub(dots, off), scale, v128.load(sums)));
}
