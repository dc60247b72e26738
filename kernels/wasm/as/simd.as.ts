/** Lane helpers shared by the kernels. Every lane is computed alike, so one value or four give the same bits (E2). */

/** a · b + c: one rounding with relaxed SIMD where the CPU has it, else two. Numerics classes tell them apart. */
// @ts-ignore: decorator
@inline
export function madd(a: v128, b: v128, c: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return f32x4.relaxed_madd(a, b, c);
  return f32x4.add(f32x4.mul(a, b), c);
}

/** One order for every horizontal sum: (0 + 1) + (2 + 3). */
// @ts-ignore: decorator
@inline
export function sum4(v: v128): f32 {
  return f32x4.extract_lane(v, 0) + f32x4.extract_lane(v, 1) + (f32x4.extract_lane(v, 2) + f32x4.extract_lane(v, 3));
}

/** [sum4(a), sum4(b), sum4(c), sum4(d)], added in sum4's order. */
// @ts-ignore: decorator
@inline
export function sums_of_4(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab01 = i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const cd01 = i8x16.shuffle(c, d, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const ab23 = i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const cd23 = i8x16.shuffle(c, d, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const lane0 = i8x16.shuffle(ab01, cd01, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  const lane1 = i8x16.shuffle(ab01, cd01, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  const lane2 = i8x16.shuffle(ab23, cd23, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  const lane3 = i8x16.shuffle(ab23, cd23, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return f32x4.add(f32x4.add(lane0, lane1), f32x4.add(lane2, lane3));
}

/**
 * e^x, at most 2 ulp from the real value for x in [-87, 88]; 0 below. Cody and Waite reduction, degree-5 polynomial (Cephes expf).
 */
// @ts-ignore: decorator
@inline
export function exp4(x0: v128): v128 {
  const isTiny = f32x4.lt(x0, f32x4.splat(-87.0));
  // With the operands in this order, pmin and pmax keep a NaN.
  const x = f32x4.pmin(f32x4.pmax(x0, f32x4.splat(-87.0)), f32x4.splat(88.0));
  // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
  const shifted = f32x4.add(f32x4.mul(x, f32x4.splat(1.44269504088896341)), f32x4.splat(12582912.0));
  const n = f32x4.sub(shifted, f32x4.splat(12582912.0));
  let r = f32x4.sub(x, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.sub(r, f32x4.mul(n, f32x4.splat(-2.12194440e-4)));
  let p = f32x4.splat(1.9875691500e-4);
  p = madd(p, r, f32x4.splat(1.3981999507e-3));
  p = madd(p, r, f32x4.splat(8.3334519073e-3));
  p = madd(p, r, f32x4.splat(4.1665795894e-2));
  p = madd(p, r, f32x4.splat(1.6666665459e-1));
  p = madd(p, r, f32x4.splat(5.0000001201e-1));
  p = madd(p, f32x4.mul(r, r), f32x4.add(r, f32x4.splat(1.0)));
  const scale = i32x4.shl(i32x4.add(shifted, i32x4.splat(127)), 23);
  return v128.andnot(f32x4.mul(p, scale), isTiny);
}

/**
 * Replaces the values of whole vectors in [from, to) by cap · tanh(value · scale). tanh(z) = 1 - 2 / (1 + e^2z), with an absolute
 * error of 2^-23.
 */
export function cap_scores(from: usize, to: usize, scale: f32, cap: f32): void {
  const scale4 = f32x4.splat(2.0 * scale);
  const cap4 = f32x4.splat(cap);
  for (; from < to; from += 16) {
    const widened = exp4(f32x4.mul(v128.load(from), scale4));
    const part = f32x4.div(f32x4.splat(2.0), f32x4.add(f32x4.splat(1.0), widened));
    v128.store(from, f32x4.mul(cap4, f32x4.sub(f32x4.splat(1.0), part)));
  }
}

/** Returns e^x with the bits of {@link exp4}. */
// @ts-ignore: decorator
@inline
export function exp1(x: f32): f32 {
  return f32x4.extract_lane(exp4(f32x4.splat(x)), 0);
}

/** to[i] = from[i] · factor, whole vectors. */
// @ts-ignore: decorator
@inline
export function multiply(from: usize, to: usize, bytes: usize, factor: f32): void {
  const factor4 = f32x4.splat(factor);
  for (let i: usize = 0; i < bytes; i += 16) v128.store(to + i, f32x4.mul(v128.load(from + i), factor4));
}

/** Four f16 at `at` as f32, exact, subnormals too. Infinities do not occur: stores saturate. */
// @ts-ignore: decorator
@inline
export function load4_f16(at: usize): v128 {
  return f32x4.mul(load4_f16_small(at), f32x4.splat(TWO_112));
}

/** Four f16 at `at` as f32, times 2^-112. Callers scale the other factor up by a power of two instead, which changes no bit. */
// @ts-ignore: decorator
@inline
export function load4_f16_small(at: usize): v128 {
  // The sign bit is at 31 and copied to 28 to 30, which are taken out; the exponent is then 112 too small.
  return v128.and(i32x4.shl(v128.load_ext<i16>(at), 13), i32x4.splat(0x8fffe000));
}

/** 2^112: the difference of the exponent biases of f32 and f16, which {@link load4_f16_small} leaves out. */
// @ts-ignore: decorator
@inline
export const TWO_112: f32 = 5192296858534827628530496329220096.0;

/** Nearest f16, ties to even, saturating at ±65504. A NaN becomes 65504: a model that makes one is broken already. */
// @ts-ignore: decorator
@inline
export function to_f16(value: f32): u16 {
  const bits = reinterpret<u32>(value);
  const sign = (bits >> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  // 65520 and above would round to infinity.
  if (magnitude >= 0x477ff000) return (sign | 0x7bff) as u16;
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 0.5 aligns the mantissa so that the hardware rounds to a multiple of 2^-24.
    const aligned = reinterpret<f32>(magnitude) + 0.5;
    return (sign | (reinterpret<u32>(aligned) - 0x3f000000)) as u16;
  }
  const rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (sign | ((rounded - 0x38000000) >> 13)) as u16;
}

/**
 * Reads a word of every cache line in [from, from + bytes), so that the lines are in cache when they are needed. A CPU prefetches only
 * within a page of 4 KiB, and its out-of-order window of a few hundred instructions is shorter than a memory access when there is much
 * to compute per byte. Bursts should be short, about 1 KiB: they overlap with the computation that follows. The words are written to
 * `sink`, so that the reads are not removed.
 */
export function touch(from: usize, bytes: usize, sink: usize): void {
  let a: u32 = 0,
    b: u32 = 0;
  for (const end = from + bytes; from < end; from += 256) {
    a |= load<u32>(from) | load<u32>(from, 64);
    b |= load<u32>(from, 128) | load<u32>(from, 192);
  }
  store<u32>(sink, a | b);
}

/**
 * Touches lines at page offsets [first, last) in every 4 KiB of [from, from + bytes) and of the range `apart` bytes later, like {@link
 * touch}. A few lines of many pages at a time share address look-ups, and the CPU then prefetches the pages' other lines.
 */
export function touch_pages(from: usize, bytes: usize, apart: usize, first: usize, last: usize, sink: usize): void {
  let a: u32 = 0;
  for (let line = first; line < last; line += 64) {
    for (let at = line; at < bytes; at += 4096) a |= load<u32>(from + at) | load<u32>(from + at + apart);
  }
  store<u32>(sink, a);
}
