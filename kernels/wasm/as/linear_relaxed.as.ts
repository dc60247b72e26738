/** Products of int4, uint4 and mxfp4 by relaxed SIMD, a tile of up to four rows and a panel at a time. See linear_int.as.ts. */
import { add_group, EXPONENT, first_halves, head_bytes, scales_of, SIGNED, whole_sums, ZEROED, zeros_of } from './int_groups.as';
import { Q_BYTES_GROUP } from './quantise.as';
import { high_codes, low_codes, raised_mxfp4 } from './table_codes.as';

/** sums[rows][8] += q · w for int4. */
export function tiles_int4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(SIGNED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for uint4. */
export function tiles_uint4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(ZEROED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for mxfp4. */
export function tiles_mxfp4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(EXPONENT, q, qStride, w, count, sums, rows);
}

// @ts-ignore: decorator
@inline
function tiles_relaxed(kind: i32, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= rows; row += 4) tile_relaxed(4, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= rows; row += 2) tile_relaxed(2, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  if (row < rows) tile_relaxed(1, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

// @ts-ignore: decorator
@inline
function at(q: usize, qStride: usize, row: u32): usize {
  return q + (row as usize) * qStride;
}

/**
 * sums[rows][8] += q[rows, count groups] · w for int4, uint4 and mxfp4, like `tile` of linear_int_tiles.as.ts but with relaxed SIMD: `a` has outputs 0 to 3 and
 * `b` outputs 4 to 7, in two i16 each.
 */
// @ts-ignore: decorator
@inline
function tile_relaxed(rows: i32, kind: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride, q2 = q1 + qStride, q3 = q2 + qStride;
  for (const end = q0 + (count as usize) * Q_BYTES_GROUP; q0 < end; ) {
    let a0 = first_halves(kind, q0), b0 = a0;
    let a1 = rows > 1 ? first_halves(kind, q1) : a0, b1 = a1;
    let a2 = rows > 2 ? first_halves(kind, q2) : a0, b2 = a2;
    let a3 = rows > 2 ? first_halves(kind, q3) : a0, b3 = a3;
    const head = w;
    w += head_bytes(kind);
    for (const last = w + 128; w < last; w += 32) {
      let v = v128.load(w);
      let low = kind == EXPONENT ? raised_mxfp4(low_codes(v)) : low_codes(v);
      let high = kind == EXPONENT ? raised_mxfp4(high_codes(v)) : high_codes(v);
      a0 = two_products(q0, low, high, a0);
      if (rows > 1) a1 = two_products(q1, low, high, a1);
      if (rows > 2) {
        a2 = two_products(q2, low, high, a2);
        a3 = two_products(q3, low, high, a3);
      }
      v = v128.load(w, 16);
      low = kind == EXPONENT ? raised_mxfp4(low_codes(v)) : low_codes(v);
      high = kind == EXPONENT ? raised_mxfp4(high_codes(v)) : high_codes(v);
      b0 = two_products(q0, low, high, b0);
      q0 += 8;
      if (rows > 1) {
        b1 = two_products(q1, low, high, b1);
        q1 += 8;
      }
      if (rows > 2) {
        b2 = two_products(q2, low, high, b2);
        q2 += 8;
        b3 = two_products(q3, low, high, b3);
        q3 += 8;
      }
    }
    const scaleA = scales_of(kind, head, 0);
    const scaleB = scales_of(kind, head, 4);
    const zeroA = zeros_of(kind, head, 0);
    const zeroB = zeros_of(kind, head, 4);
    add_halves(kind, sums, a0, b0, scaleA, scaleB, zeroA, zeroB, q0 - 32);
    if (rows > 1) add_halves(kind, sums + 32, a1, b1, scaleA, scaleB, zeroA, zeroB, q1 - 32);
    if (rows > 2) {
      add_halves(kind, sums + 64, a2, b2, scaleA, scaleB, zeroA, zeroB, q2 - 32);
      add_halves(kind, sums + 96, a3, b3, scaleA, scaleB, zeroA, zeroB, q3 - 32);
    }
    (q0 += 16), (q1 += 16), (q2 += 16), (q3 += 16);
  }
}

/** Returns `sum` plus the products of eight inputs of a row, whose first four are at byte 16, with four outputs. */
// @ts-ignore: decorator
@inline
function two_products(row: usize, low: v128, high: v128, sum: v128): v128 {
  sum = i16x8.add(sum, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(row, 16), low));
  return i16x8.add(sum, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(row, 20), high));
}

// @ts-ignore: decorator
@inline
function add_halves(kind: i32, sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, zeroA: v128, zeroB: v128, row: usize): void {
  add_group(kind, sums, whole_sums(kind, a, row), whole_sums(kind, b, row), scaleA, scaleB, zeroA, zeroB, row);
}
