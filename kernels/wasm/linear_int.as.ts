/**
 * y[rows, outputs] (+)= x[rows, inner] · wᵀ (+ bias) with int8 or int4 weights, for a range of panels.
 *
 *   x        quantised per row and group of 32 inputs (quantise.as.ts)
 *   w        packed [panels][groups]: 8 scales f16, then for int8 [16 pairs of inputs][8 outputs][2] i8, for int4
 *            [8][8 outputs][2] bytes whose low nibbles are inputs 4j and 4j + 1, the high ones 4j + 2 and 4j + 3, each plus 8
 *   scratch  sums [ROW_BLOCK][8] f32, then the quantised rows
 *
 * Dot products within a group are exact integers: i16 pairs multiplied and added to i32, at most 32 · 127 · 127. int4 with
 * relaxed SIMD multiplies i8 by the nibble as it is, 0 to 15, which is the seven-bit operand that makes the instruction exact
 * (pairs ≤ 3,810, eight of them within i16), and the 8s are taken off at the end. Groups are then scaled and added in order, one accumulator
 * per output, so bits depend neither on the tile nor on relaxed integer instructions (E2).
 */
import { finish8, ROW_BLOCK } from './panels.as';
import { Q_GROUP_BYTES, quantise } from './quantise.as';
import { load4_f16, madd } from './simd.as';

/** Groups of a panel whose weights stay in the first-level cache while rows pass: 4 KiB of int8 and 2.5 KiB a row. */
const SLICE: u32 = 16;

export function linear_int(
  x: usize,
  xStride: usize,
  w: usize,
  isInt4: u32,
  bias: usize,
  y: usize,
  yStride: usize,
  rows: u32,
  inner: u32,
  isAccumulating: u32,
  panelStart: u32,
  panelEnd: u32,
  scratch: usize,
): void {
  const groups = (inner + 31) >> 5;
  const groupBytes: usize = isInt4 ? 144 : 272;
  const panelBytes = (groups as usize) * groupBytes;
  const q = scratch + (ROW_BLOCK << 5);
  const qStride = (groups as usize) * Q_GROUP_BYTES;
  for (let rowStart: u32 = 0; rowStart < rows; rowStart += ROW_BLOCK) {
    const numRows = min<u32>(ROW_BLOCK, rows - rowStart);
    quantise(x + (rowStart as usize) * xStride, xStride, numRows, inner, isInt4, q, scratch);
    const yBlock = y + (rowStart as usize) * yStride;
    for (let panel = panelStart; panel < panelEnd; panel++) {
      memory.fill(scratch, 0, (numRows as usize) << 5);
      const wPanel = w + (panel as usize) * panelBytes;
      for (let group: u32 = 0; group < groups; group += SLICE) {
        const count = min<u32>(SLICE, groups - group);
        const from = wPanel + (group as usize) * groupBytes;
        const qSlice = q + (group as usize) * Q_GROUP_BYTES;
        if (!isInt4) tiles_int8(qSlice, qStride, from, count, scratch, numRows);
        else if (ASC_FEATURE_RELAXED_SIMD) tiles_int4_relaxed(qSlice, qStride, from, count, scratch, numRows);
        else tiles_int4(qSlice, qStride, from, count, scratch, numRows);
      }
      for (let row: u32 = 0; row < numRows; row++) {
        const to = yBlock + (row as usize) * yStride + ((panel as usize) << 5);
        finish8(to, scratch + ((row as usize) << 5), bias, panel, isAccumulating);
      }
    }
  }
}

function tiles_int8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, numRows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= numRows; row += 4) tile(4, 0, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= numRows; row += 2) tile(2, 0, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  if (row < numRows) tile(1, 0, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

function tiles_int4(q: usize, qStride: usize, w: usize, count: u32, sums: usize, numRows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= numRows; row += 4) tile(4, 1, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  for (; row < numRows; row++) tile(1, 1, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

function tiles_int4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, numRows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= numRows; row += 4) {
    tile_relaxed(4, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  }
  for (; row + 2 <= numRows; row += 2) {
    tile_relaxed(2, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  }
  if (row < numRows) tile_relaxed(1, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

// @ts-ignore: decorator
@inline
function at(q: usize, qStride: usize, row: u32): usize {
  return q + (row as usize) * qStride;
}

/** sums[rows][8] += q[rows, count groups] · w; `rows` and `isInt4` are constants, so that each case is its own code. */
// @ts-ignore: decorator
@inline
function tile(rows: i32, isInt4: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride,
    q2 = q1 + qStride,
    q3 = q2 + qStride;
  const mask = i8x16.splat(15);
  for (const end = q0 + (count as usize) * Q_GROUP_BYTES; q0 < end; ) {
    let a0 = isInt4 ? v128.load32_splat(q0, 4) : i32x4.splat(0);
    let b0 = a0,
      a1 = a0,
      b1 = a0,
      a2 = a0,
      b2 = a0,
      a3 = a0,
      b3 = a0;
    if (isInt4 && rows > 2) {
      a1 = v128.load32_splat(q1, 4);
      b1 = a1;
      a2 = v128.load32_splat(q2, 4);
      b2 = a2;
      a3 = v128.load32_splat(q3, 4);
      b3 = a3;
    }
    const scaleAt = w;
    w += 16;
    q0 += 16;
    if (rows > 1) q1 += 16;
    if (rows > 2) {
      q2 += 16;
      q3 += 16;
    }
    for (let turn: u32 = 0; turn < 8; turn++) {
      let v = a0,
        wa: v128,
        wb: v128;
      if (isInt4) {
        v = v128.load(w);
        const low = v128.and(v, mask);
        wa = i16x8.extend_low_i8x16_u(low);
        wb = i16x8.extend_high_i8x16_u(low);
      } else {
        wa = v128.load_ext<i8>(w);
        wb = v128.load_ext<i8>(w, 8);
      }
      let s = v128.load32_splat(q0);
      a0 = i32x4.add(a0, i32x4.dot_i16x8_s(s, wa));
      b0 = i32x4.add(b0, i32x4.dot_i16x8_s(s, wb));
      if (rows > 1) {
        s = v128.load32_splat(q1);
        a1 = i32x4.add(a1, i32x4.dot_i16x8_s(s, wa));
        b1 = i32x4.add(b1, i32x4.dot_i16x8_s(s, wb));
      }
      if (rows > 2) {
        s = v128.load32_splat(q2);
        a2 = i32x4.add(a2, i32x4.dot_i16x8_s(s, wa));
        b2 = i32x4.add(b2, i32x4.dot_i16x8_s(s, wb));
        s = v128.load32_splat(q3);
        a3 = i32x4.add(a3, i32x4.dot_i16x8_s(s, wa));
        b3 = i32x4.add(b3, i32x4.dot_i16x8_s(s, wb));
      }
      if (isInt4) {
        const high = v128.and(i16x8.shr_u(v, 4), mask);
        wa = i16x8.extend_low_i8x16_u(high);
        wb = i16x8.extend_high_i8x16_u(high);
        w += 16;
      } else {
        wa = v128.load_ext<i8>(w, 16);
        wb = v128.load_ext<i8>(w, 24);
        w += 32;
      }
      s = v128.load32_splat(q0, 4);
      a0 = i32x4.add(a0, i32x4.dot_i16x8_s(s, wa));
      b0 = i32x4.add(b0, i32x4.dot_i16x8_s(s, wb));
      q0 += 8;
      if (rows > 1) {
        s = v128.load32_splat(q1, 4);
        a1 = i32x4.add(a1, i32x4.dot_i16x8_s(s, wa));
        b1 = i32x4.add(b1, i32x4.dot_i16x8_s(s, wb));
        q1 += 8;
      }
      if (rows > 2) {
        s = v128.load32_splat(q2, 4);
        a2 = i32x4.add(a2, i32x4.dot_i16x8_s(s, wa));
        b2 = i32x4.add(b2, i32x4.dot_i16x8_s(s, wb));
        q2 += 8;
        s = v128.load32_splat(q3, 4);
        a3 = i32x4.add(a3, i32x4.dot_i16x8_s(s, wa));
        b3 = i32x4.add(b3, i32x4.dot_i16x8_s(s, wb));
        q3 += 8;
      }
    }
    const scaleA = load4_f16(scaleAt);
    const scaleB = load4_f16(scaleAt + 8);
    add_group(sums, a0, b0, scaleA, scaleB, q0);
    if (rows > 1) add_group(sums + 32, a1, b1, scaleA, scaleB, q1);
    if (rows > 2) {
      add_group(sums + 64, a2, b2, scaleA, scaleB, q2);
      add_group(sums + 96, a3, b3, scaleA, scaleB, q3);
    }
  }
}

/** As {@link tile} for int4: i16 lanes are outputs, half of a group's pairs each in `a` and `b`. */
// @ts-ignore: decorator
@inline
function tile_relaxed(rows: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride,
    q2 = q1 + qStride,
    q3 = q2 + qStride;
  const mask = i8x16.splat(15);
  for (const end = q0 + (count as usize) * Q_GROUP_BYTES; q0 < end; ) {
    let a0 = i32x4.splat(0);
    let b0 = a0,
      a1 = a0,
      b1 = a0,
      a2 = a0,
      b2 = a0,
      a3 = a0,
      b3 = a0;
    const scaleAt = w;
    w += 16;
    q0 += 16;
    if (rows > 1) q1 += 16;
    if (rows > 2) {
      q2 += 16;
      q3 += 16;
    }
    for (let turn: u32 = 0; turn < 4; turn++) {
      let v = v128.load(w);
      let low = v128.and(v, mask);
      let high = v128.and(i16x8.shr_u(v, 4), mask);
      a0 = i16x8.add(a0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0), low));
      b0 = i16x8.add(b0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0, 4), high));
      if (rows > 1) {
        a1 = i16x8.add(a1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1), low));
        b1 = i16x8.add(b1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1, 4), high));
      }
      if (rows > 2) {
        a2 = i16x8.add(a2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2), low));
        b2 = i16x8.add(b2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2, 4), high));
        a3 = i16x8.add(a3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3), low));
        b3 = i16x8.add(b3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3, 4), high));
      }
      v = v128.load(w, 16);
      low = v128.and(v, mask);
      high = v128.and(i16x8.shr_u(v, 4), mask);
      a0 = i16x8.add(a0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0, 8), low));
      b0 = i16x8.add(b0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0, 12), high));
      q0 += 16;
      if (rows > 1) {
        a1 = i16x8.add(a1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1, 8), low));
        b1 = i16x8.add(b1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1, 12), high));
        q1 += 16;
      }
      if (rows > 2) {
        a2 = i16x8.add(a2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2, 8), low));
        b2 = i16x8.add(b2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2, 12), high));
        q2 += 16;
        a3 = i16x8.add(a3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3, 8), low));
        b3 = i16x8.add(b3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3, 12), high));
        q3 += 16;
      }
      w += 32;
    }
    const scaleA = load4_f16(scaleAt);
    const scaleB = load4_f16(scaleAt + 8);
    add_halves(sums, a0, b0, scaleA, scaleB, q0);
    if (rows > 1) add_halves(sums + 32, a1, b1, scaleA, scaleB, q1);
    if (rows > 2) {
      add_halves(sums + 64, a2, b2, scaleA, scaleB, q2);
      add_halves(sums + 96, a3, b3, scaleA, scaleB, q3);
    }
  }
}

/** `end` is where the row's group ends: its scale and correction lie at the group's start. */
// @ts-ignore: decorator
@inline
function add_group(sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, end: usize): void {
  const scale = v128.load32_splat(end - Q_GROUP_BYTES);
  v128.store(sums, madd(f32x4.convert_i32x4_s(a), f32x4.mul(scaleA, scale), v128.load(sums)));
  v128.store(sums, madd(f32x4.convert_i32x4_s(b), f32x4.mul(scaleB, scale), v128.load(sums, 16)), 16);
}

// @ts-ignore: decorator
@inline
function add_halves(sums: usize, a: v128, b: v128, scaleA: v128, scaleB: v128, end: usize): void {
  const correction = v128.load32_splat(end - Q_GROUP_BYTES, 4);
  const low = i32x4.add(i32x4.extend_low_i16x8_s(a), i32x4.extend_low_i16x8_s(b));
  const high = i32x4.add(i32x4.extend_high_i16x8_s(a), i32x4.extend_high_i16x8_s(b));
  add_group(sums, i32x4.add(low, correction), i32x4.add(high, correction), scaleA, scaleB, end);
}
