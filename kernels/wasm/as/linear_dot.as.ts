/**
 * Products of integers with dot products of bytes: four inputs of an output, side by side, times four inputs of a row are added to an i32
 * in one instruction. Rows are bytes, [groups] of Q_BYTES_GROUP; see linear_int.as.ts for weights and sums.
 *
 * The instruction's operand of seven bits is only defined for 0 to 127. Weights of four bits stay within; those of int8 and iq4 do not,
 * but a runtime adds them exactly if it takes that operand as eight bits, unsigned (VNNI) or signed (ARM), which `dot_instructions` has
 * found out. A group's sum begins with its correction, so that it is that of the weights' values.
 */
import { dot, group_of, int8_of, integers_of } from './dot_weights.as';
import { add_group, CODED, EXPONENT, first_sum, head_bytes, scales_of, SIGNED, ZEROED, zeros_of } from './int_groups.as';
import { INT4, INT8, INT8_GROUP, MXFP4, UINT4 } from './panels.as';
import { Q_BYTES_GROUP } from './quantise.as';
import { high_codes, low_codes } from './table_codes.as';

/** sums[rows][8] += q · w for `count` groups of a panel. */
// @ts-ignore: decorator
@inline
export function tiles_dot(format: u32, isSigned: bool, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  if (format == INT8) {
    if (isSigned) dot_tiles_int8_signed(q, qStride, w, count, sums, rows);
    else dot_tiles_int8(q, qStride, w, count, sums, rows);
  } else if (format == INT4) dot_tiles_int4(q, qStride, w, count, sums, rows);
  else if (format == UINT4) dot_tiles_uint4(q, qStride, w, count, sums, rows);
  else if (format == MXFP4) dot_tiles_mxfp4(q, qStride, w, count, sums, rows);
  else if (isSigned) dot_tiles_iq4_signed(q, qStride, w, count, sums, rows);
  else dot_tiles_iq4(q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of int8. */
export function dot_tiles_int8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_int8(0, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of int8 where bytes are signed. */
export function dot_tiles_int8_signed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_int8(1, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of int4. */
export function dot_tiles_int4(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_codes(SIGNED, 0, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of uint4. */
export function dot_tiles_uint4(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_codes(ZEROED, 0, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of mxfp4. */
export function dot_tiles_mxfp4(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_codes(EXPONENT, 0, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of iq4. */
export function dot_tiles_iq4(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_codes(CODED, 0, q, qStride, w, count, sums, rows);
}

/** {@link tiles_dot} of iq4 where bytes are signed. */
export function dot_tiles_iq4_signed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_codes(CODED, 1, q, qStride, w, count, sums, rows);
}

// @ts-ignore: decorator
@inline
function tiles_int8(isSigned: i32, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 6 <= rows; row += 6) tile_int8(6, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 4 <= rows; row += 4) tile_int8(4, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= rows; row += 2) tile_int8(2, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
  if (row < rows) tile_int8(1, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
}

// @ts-ignore: decorator
@inline
function tiles_codes(kind: i32, isSigned: i32, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= rows; row += 4) tile_codes(4, kind, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= rows; row += 2) tile_codes(2, kind, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
  if (row < rows) tile_codes(1, kind, isSigned, q + (row as usize) * qStride, qStride, w, count, sums + ((row as usize) << 5));
}

/** sums[rows][8] += q[rows, count groups] · w for int8; `rows` and `isSigned` are constants. Six rows are what registers hold. */
// @ts-ignore: decorator
@inline
function tile_int8(rows: i32, isSigned: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  const q1 = qStride, q2 = 2 * qStride, q3 = 3 * qStride, q4 = 4 * qStride, q5 = 5 * qStride;
  for (const end = q0 + (count as usize) * Q_BYTES_GROUP; q0 < end; q0 += Q_BYTES_GROUP) {
    let a0 = first_sum(q0), b0 = a0;
    let a1 = rows > 1 ? first_sum(q0 + q1) : a0, b1 = a1;
    let a2 = rows > 2 ? first_sum(q0 + q2) : a0, b2 = a2;
    let a3 = rows > 2 ? first_sum(q0 + q3) : a0, b3 = a3;
    let a4 = rows > 4 ? first_sum(q0 + q4) : a0, b4 = a4;
    let a5 = rows > 4 ? first_sum(q0 + q5) : a0, b5 = a5;
    let x = q0;
    for (const last = x + 32; x < last; x += 4) {
      const at = w + ((x - q0) << 3);
      const wa = int8_of(isSigned, v128.load(at, 16));
      const wb = int8_of(isSigned, v128.load(at, 32));
      let s = v128.load32_splat(x, 16);
      a0 = dot(s, wa, a0);
      b0 = dot(s, wb, b0);
      if (rows > 1) {
        s = v128.load32_splat(x + q1, 16);
        a1 = dot(s, wa, a1);
        b1 = dot(s, wb, b1);
      }
      if (rows > 2) {
        s = v128.load32_splat(x + q2, 16);
        a2 = dot(s, wa, a2);
        b2 = dot(s, wb, b2);
        s = v128.load32_splat(x + q3, 16);
        a3 = dot(s, wa, a3);
        b3 = dot(s, wb, b3);
      }
      if (rows > 4) {
        s = v128.load32_splat(x + q4, 16);
        a4 = dot(s, wa, a4);
        b4 = dot(s, wb, b4);
        s = v128.load32_splat(x + q5, 16);
        a5 = dot(s, wa, a5);
        b5 = dot(s, wb, b5);
      }
    }
    const scaleA = scales_of(SIGNED, w, 0);
    const scaleB = scales_of(SIGNED, w, 4);
    add_group(SIGNED, sums, a0, b0, scaleA, scaleB, scaleA, scaleB, q0);
    if (rows > 1) add_group(SIGNED, sums + 32, a1, b1, scaleA, scaleB, scaleA, scaleB, q0 + q1);
    if (rows > 2) {
      add_group(SIGNED, sums + 64, a2, b2, scaleA, scaleB, scaleA, scaleB, q0 + q2);
      add_group(SIGNED, sums + 96, a3, b3, scaleA, scaleB, scaleA, scaleB, q0 + q3);
    }
    if (rows > 4) {
      add_group(SIGNED, sums + 128, a4, b4, scaleA, scaleB, scaleA, scaleB, q0 + q4);
      add_group(SIGNED, sums + 160, a5, b5, scaleA, scaleB, scaleA, scaleB, q0 + q5);
    }
    w += INT8_GROUP;
  }
}

/** sums[rows][8] += q[rows, count groups] · w for formats of four bits; `rows`, `kind` and `isSigned` are constants. */
// @ts-ignore: decorator
@inline
function tile_codes(rows: i32, kind: i32, isSigned: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  const q1 = qStride, q2 = 2 * qStride, q3 = 3 * qStride;
  for (const end = q0 + (count as usize) * Q_BYTES_GROUP; q0 < end; q0 += Q_BYTES_GROUP) {
    let a0 = first_sum(q0), b0 = a0;
    let a1 = rows > 1 ? first_sum(q0 + q1) : a0, b1 = a1;
    let a2 = rows > 2 ? first_sum(q0 + q2) : a0, b2 = a2;
    let a3 = rows > 2 ? first_sum(q0 + q3) : a0, b3 = a3;
    let x = q0;
    for (const last = x + 32; x < last; x += 8) {
      const at = w + ((x - q0) << 2) + head_bytes(kind);
      let v = v128.load(at);
      let low = integers_of(kind, isSigned, low_codes(v));
      let high = integers_of(kind, isSigned, high_codes(v));
      a0 = dot(v128.load32_splat(x, 20), high, dot(v128.load32_splat(x, 16), low, a0));
      if (rows > 1) a1 = dot(v128.load32_splat(x + q1, 20), high, dot(v128.load32_splat(x + q1, 16), low, a1));
      if (rows > 2) {
        a2 = dot(v128.load32_splat(x + q2, 20), high, dot(v128.load32_splat(x + q2, 16), low, a2));
        a3 = dot(v128.load32_splat(x + q3, 20), high, dot(v128.load32_splat(x + q3, 16), low, a3));
      }
      v = v128.load(at, 16);
      low = integers_of(kind, isSigned, low_codes(v));
      high = integers_of(kind, isSigned, high_codes(v));
      b0 = dot(v128.load32_splat(x, 20), high, dot(v128.load32_splat(x, 16), low, b0));
      if (rows > 1) b1 = dot(v128.load32_splat(x + q1, 20), high, dot(v128.load32_splat(x + q1, 16), low, b1));
      if (rows > 2) {
        b2 = dot(v128.load32_splat(x + q2, 20), high, dot(v128.load32_splat(x + q2, 16), low, b2));
        b3 = dot(v128.load32_splat(x + q3, 20), high, dot(v128.load32_splat(x + q3, 16), low, b3));
      }
    }
    const scaleA = scales_of(kind, w, 0);
    const scaleB = scales_of(kind, w, 4);
    const zeroA = zeros_of(kind, w, 0);
    const zeroB = zeros_of(kind, w, 4);
    add_group(kind, sums, a0, b0, scaleA, scaleB, zeroA, zeroB, q0);
    if (rows > 1) add_group(kind, sums + 32, a1, b1, scaleA, scaleB, zeroA, zeroB, q0 + q1);
    if (rows > 2) {
      add_group(kind, sums + 64, a2, b2, scaleA, scaleB, zeroA, zeroB, q0 + q2);
      add_group(kind, sums + 96, a3, b3, scaleA, scaleB, zeroA, zeroB, q0 + q3);
    }
    w += group_of(kind);
  }
}
