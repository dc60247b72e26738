/**
 * Quantises rows of activations per group of 32 inputs: scale = max |x| / 127, q = x · (127 / max |x|) rounded to nearest even.
 *
 *   q     [rows][groups]: scale f32; the correction i32, -Σ q times what `raised_by` says (instructions.as.ts); Σ q f32, for uint4; two i16,
 *         for relaxed mxfp4: -12 · Σ q of the inputs 4j and 4j + 1, and of the others; then 32 inputs as `reads_bytes` says: i8, or i16 in
 *         the order 4j, 4j + 2, 4j + 1, 4j + 3, so that the even inputs of a quad lie side by side, and the odd ones
 *   last  room for 32 f32, where the last inputs of a row are padded with zeros
 *
 * Each row is quantised by itself, so its bits do not depend on its neighbours (E2).
 */
import { raised_by, reads_bytes } from './instructions.as';
import { LinearParams } from './panels.as';

/** Bytes of one row's group whose inputs are i16; no form has more. */
export const Q_GROUP_BYTES: usize = 80;
/** Bytes of one row's group whose inputs are i8. */
export const Q_BYTES_GROUP: usize = 48;

/** Returns the bytes of one row's group as these instructions read it. */
// @ts-ignore: decorator
@inline
export function group_bytes(format: u32, instructions: u32): usize {
  return reads_bytes(format, instructions) ? Q_BYTES_GROUP : Q_GROUP_BYTES;
}

/** Quantises rows [first, first + rows) of a product's input into `q`. */
export function quantise(params: LinearParams, first: u32, rows: u32, q: usize, last: usize, instructions: u32): void {
  const format = params.format;
  const isBytes = reads_bytes(format, instructions);
  const raised = raised_by(format, instructions);
  const groupBytes = group_bytes(format, instructions);
  const inner = params.inner;
  const xStride = params.xStride;
  const x = params.x + (first as usize) * xStride;
  const wholeBytes = ((inner & ~31) as usize) << 2;
  const restBytes = ((inner & 31) as usize) << 2;
  for (let row: u32 = 0; row < rows; row++) {
    let from = x + (row as usize) * xStride;
    for (const end = from + wholeBytes; from < end; from += 128) {
      group(from, q, isBytes, raised);
      q += groupBytes;
    }
    if (restBytes) {
      memory.fill(last, 0, 128);
      memory.copy(last, from, restBytes);
      group(last, q, isBytes, raised);
      q += groupBytes;
    }
  }
}

function group(x: usize, q: usize, isBytes: bool, raised: i32): void {
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
    if (isBytes) v128.store(to + (i >> 2), i8x16.narrow_i16x8_s(low, high));
    else {
      v128.store(to + (i >> 1), even_first(low));
      v128.store(to + (i >> 1), even_first(high), 16);
    }
  }
  const even = i32x4.extract_lane(sums, 0) + i32x4.extract_lane(sums, 2);
  const odd = i32x4.extract_lane(sums, 1) + i32x4.extract_lane(sums, 3);
  const sum = even + odd;
  store<i32>(q, -raised * sum, 4);
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

/** Swaps the middle two of each four i16. */
// @ts-ignore: decorator
@inline
function even_first(quads: v128): v128 {
  return i8x16.shuffle(quads, quads, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
}
