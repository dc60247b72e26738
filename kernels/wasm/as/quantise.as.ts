/**
 * Quantises rows of activations per group of 32 inputs: scale = max |x| / 127, q = x · (127 / max |x|) rounded to nearest even.
 *
 *   q     [rows][groups]: scale f32, -8 · Σ q i32 (for relaxed int4), Σ q f32 (for uint4), two i16 for relaxed mxfp4: -12 · Σ q of the
 *         inputs 4j and 4j + 1, and of the others; then 32 inputs in the form that the product reads: i16 each, or, for int4, uint4 and
 *         mxfp4 with relaxed SIMD, every pair of i8 twice (k, k + 1, k, k + 1)
 *   last  room for 32 f32, where the last inputs of a row are padded with zeros
 *
 * Each row is quantised by itself, so its bits do not depend on its neighbours (E2).
 */

import { RELAXED } from './instructions.as';
import { INT4, LinearParams, MXFP4, UINT4 } from './panels.as';

/** Bytes of one row's group. */
export const Q_GROUP_BYTES: usize = 80;

/** Quantises rows [first, first + rows) of a product's input into `q`. */
export function quantise(params: LinearParams, first: u32, rows: u32, q: usize, last: usize, instructions: u32): void {
  const format = params.format;
  const isPaired: u32 = ASC_FEATURE_RELAXED_SIMD && instructions == RELAXED && (format == INT4 || format == UINT4 || format == MXFP4) ? 1 : 0;
  const inner = params.inner;
  const xStride = params.xStride;
  const x = params.x + (first as usize) * xStride;
  const wholeBytes = ((inner & ~31) as usize) << 2;
  const restBytes = ((inner & 31) as usize) << 2;
  for (let row: u32 = 0; row < rows; row++) {
    let from = x + (row as usize) * xStride;
    for (const end = from + wholeBytes; from < end; from += 128) {
      group(from, q, isPaired);
      q += Q_GROUP_BYTES;
    }
    if (restBytes) {
      memory.fill(last, 0, 128);
      memory.copy(last, from, restBytes);
      group(last, q, isPaired);
      q += Q_GROUP_BYTES;
    }
  }
}

function group(x: usize, q: usize, isPaired: u32): void {
  let highest = f32x4.abs(v128.load(x));
  for (let i: usize = 16; i < 128; i += 16) highest = f32x4.max(highest, f32x4.abs(v128.load(x + i)));
  highest = f32x4.max(highest, i8x16.shuffle(highest, highest, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  const largest = max<f32>(f32x4.extract_lane(highest, 0), f32x4.extract_lane(highest, 1));
  store<f32>(q, largest / (127.0 as f32));
  // A largest magnitude up to 1e-36 counts as 0, because the inverse of a smaller one would overflow.
  const inverse = f32x4.splat(largest > 1e-36 ? (127.0 as f32) / largest : (0.0 as f32));
  let sums = i32x4.splat(0);
  const ones = i16x8.splat(1);
  const to = q + 16;
  for (let i: usize = 0; i < 128; i += 64) {
    const low = narrow(x + i, inverse);
    const high = narrow(x + i + 32, inverse);
    sums = i32x4.add(sums, i32x4.add(i32x4.dot_i16x8_s(low, ones), i32x4.dot_i16x8_s(high, ones)));
    const at = to + (i >> 1);
    if (isPaired) {
      const bytes = i8x16.narrow_i16x8_s(low, high);
      v128.store(at, i8x16.shuffle(bytes, bytes, 0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7));
      v128.store(at, i8x16.shuffle(bytes, bytes, 8, 9, 8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15, 14, 15), 16);
    } else {
      v128.store(at, low);
      v128.store(at, high, 16);
    }
  }
  const even = i32x4.extract_lane(sums, 0) + i32x4.extract_lane(sums, 2);
  const odd = i32x4.extract_lane(sums, 1) + i32x4.extract_lane(sums, 3);
  const sum = even + odd;
  store<i32>(q, -8 * sum, 4);
  store<f32>(q, sum as f32, 8);
  store<i16>(q, (-12 * even) as i16, 12);
  store<i16>(q, (-12 * odd) as i16, 14);
}

/** Returns eight values times `inverse`, rounded to nearest even, as i16. */
// @ts-ignore: decorator
@inline
function narrow(x: usize, inverse: v128): v128 {
  const low = f32x4.nearest(f32x4.mul(v128.load(x), inverse));
  const high = f32x4.nearest(f32x4.mul(v128.load(x, 16), inverse));
  return i16x8.narrow_i32x4_s(i32x4.trunc_sat_f32x4_s(low), i32x4.trunc_sat_f32x4_s(high));
}
