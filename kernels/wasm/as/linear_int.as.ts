/**
 * y[rows, outputs] (+)= x[rows, inner] · wᵀ (+ bias) with int8 or int4 weights, for a range of panels.
 *
 *   q        x [rows ≤ ROW_BLOCK], quantised per row and group of 32 inputs (quantise.as.ts)
 *   w        packed [panels][groups]: 8 scales f16, then for int8 [16 pairs of inputs][8 outputs][2] i8, for int4
 *            [8][8 outputs][2] bytes whose low nibbles are inputs 4j and 4j + 1, the high ones 4j + 2 and 4j + 3, each plus 8;
 *            uint4 has 8 zeros f16 after its scales, and integers as they are; mxfp4 has 8 scales u8, iq4 8 f16, and both codes of a table
 *   scratch  sums [ROW_BLOCK][8] f32, a cache line, a slice of int4 as int8
 *
 * `instructions` (instructions.as.ts) must be those that `q` was quantised for.
 *
 * Dot products within a group are exact integers: i16 pairs multiplied and added to i32, at most 32 · 127 · 127. int4 with
 * relaxed SIMD multiplies i8 by the nibble as it is, 0 to 15, which is the seven-bit operand that makes the instruction exact
 * (pairs ≤ 3,810, eight of them within i16), and the 8s, or uint4's zeros, are taken off at the end; with plain SIMD it becomes int8 slice
 * by slice, as iq4 does always. Integers of mxfp4, -12 to 12, are raised by 12 for that instruction: eight pairs may leave i16, but they
 * begin with what was raised, -12 · Σ q, and what is left fits (16 · 127 · 12), so that wrapping around does no harm. Groups are then scaled and added in order, one accumulator per output, so bits depend neither on the tile nor on relaxed integer instructions (E2).
 */
import { RELAXED } from './instructions.as';
import { add_group, add_halves, first_sum, scales_of, SIGNED, TABLED, ZEROED } from './int_groups.as';
import { four_panels_iq4, four_panels_mxfp4_plain } from './linear_codes_row.as';
import { four_panels_int4, four_panels_int8, four_panels_mxfp4, four_panels_uint4 } from './linear_int_row.as';
import { AFTER_SUMS, FEW_ROWS, finish8, finish_four, INT4_GROUP, INT8, INT8_GROUP, IQ4, LinearParams, MXFP4, panel_group, SINK, UINT4, UINT4_GROUP } from './panels.as';
import { Q_GROUP_BYTES } from './quantise.as';
import { load4_f16, touch } from './simd.as';
import { codes_to_int8, high_codes, low_codes, raised_mxfp4 } from './table_codes.as';

/**
 * Groups per slice of a panel: 4 KiB of int8, which stay in the first-level cache while rows pass. With at most FEW_ROWS rows the
 * slice has SHORT_SLICE_GROUPS.
 */
export const SLICE_GROUPS: u32 = 16;
const SHORT_SLICE_GROUPS: u32 = 4;

/** Computes the outputs of rows [first, first + rows) and panels [panelStart, panelEnd). `q` has the quantised rows. */
export function linear_int(
  params: LinearParams,
  q: usize,
  first: u32,
  rows: u32,
  panelStart: u32,
  panelEnd: u32,
  scratch: usize,
  instructions: u32,
): void {
  const w = params.weight;
  const format = params.format;
  const isInt4: u32 = format == INT8 ? 0 : 1;
  const isRelaxed = ASC_FEATURE_RELAXED_SIMD && instructions == RELAXED;
  const yStride = params.outStride;
  const y = params.out + (first as usize) * yStride;
  const inner = params.inner;
  const groups = (inner + 31) >> 5;
  const groupBytes = panel_group(format);
  const panelBytes = (groups as usize) * groupBytes;
  const qStride = (groups as usize) * Q_GROUP_BYTES;
  let panel = panelStart;
  const isStreamed = rows == 1 && (isRelaxed || !isInt4 || format >= MXFP4);
  if (isStreamed) {
    // Each iteration takes one panel of each quarter: four long streams, which suit the prefetchers of a CPU best.
    const quarter = (panelEnd - panelStart) >> 2;
    const apart = (quarter as usize) * panelBytes;
    for (const end = panelStart + quarter; panel < end; panel++) {
      const wPanels = w + (panel as usize) * panelBytes;
      if (!isInt4) four_panels_int8(q, wPanels, apart, groups, scratch);
      else if (format == IQ4) four_panels_iq4(q, wPanels, apart, groups, scratch);
      else if (!isRelaxed) four_panels_mxfp4_plain(q, wPanels, apart, groups, scratch);
      else if (ASC_FEATURE_RELAXED_SIMD) {
        if (format == UINT4) four_panels_uint4(q, wPanels, apart, groups, scratch);
        else if (format == MXFP4) four_panels_mxfp4(q, wPanels, apart, groups, scratch);
        else four_panels_int4(q, wPanels, apart, groups, scratch);
      }
      finish_four(params, y, scratch, panel, quarter);
    }
    panel = panelStart + 4 * quarter;
  }
  const most = rows > FEW_ROWS ? SLICE_GROUPS : SHORT_SLICE_GROUPS;
  for (; panel < panelEnd; panel++) {
    memory.fill(scratch, 0, (rows as usize) << 5);
    const wPanel = w + (panel as usize) * panelBytes;
    for (let group: u32 = 0; group < groups; group += most) {
      const count = min<u32>(most, groups - group);
      const from = wPanel + (group as usize) * groupBytes;
      touch(from + (count as usize) * groupBytes, (count as usize) * groupBytes, scratch + SINK);
      const qSlice = q + (group as usize) * Q_GROUP_BYTES;
      if (!isInt4) tiles_int8(qSlice, qStride, from, count, scratch, rows);
      else tiles_of_nibbles(format, isRelaxed, qSlice, qStride, from, count, scratch, rows);
    }
    for (let row: u32 = 0; row < rows; row++) {
      const to = y + (row as usize) * yStride + ((panel as usize) << 5);
      finish8(params, to, scratch + ((row as usize) << 5), panel);
    }
  }
}

/** scratch[rows][8] += q · w for a slice in a format of four bits; where no instruction multiplies nibbles, they are unpacked first. */
function tiles_of_nibbles(
  format: u32,
  isRelaxed: bool,
  q: usize,
  qStride: usize,
  w: usize,
  count: u32,
  scratch: usize,
  rows: u32,
): void {
  const unpacked = scratch + AFTER_SUMS;
  if (format == IQ4 || (format == MXFP4 && !isRelaxed)) {
    codes_to_int8(format, w, unpacked, count);
    tiles_codes(q, qStride, unpacked, count, scratch, rows);
  } else if (ASC_FEATURE_RELAXED_SIMD && isRelaxed) {
    if (format == UINT4) tiles_uint4_relaxed(q, qStride, w, count, scratch, rows);
    else if (format == MXFP4) tiles_mxfp4_relaxed(q, qStride, w, count, scratch, rows);
    else tiles_int4_relaxed(q, qStride, w, count, scratch, rows);
  } else if (format == UINT4) {
    uint4_to_int8(w, unpacked, count);
    tiles_uint8(q, qStride, unpacked, count, scratch, rows);
  } else {
    int4_to_int8(w, unpacked, count);
    tiles_int8(q, qStride, unpacked, count, scratch, rows);
  }
}

function tiles_int8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(SIGNED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for uint4 weights unpacked to bytes; each group's scales and zeros precede its bytes. */
function tiles_uint8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(ZEROED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for codes unpacked to integers; each group's scales, f32, precede its bytes. */
function tiles_codes(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(TABLED, q, qStride, w, count, sums, rows);
}

// @ts-ignore: decorator
@inline
function tiles(kind: i32, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= rows; row += 4) tile(4, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= rows; row += 2) tile(2, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  if (row < rows) tile(1, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

/** Unpacks groups of int4 into groups of int8, for plain SIMD. */
function int4_to_int8(from: usize, to: usize, count: u32): void {
  const eight = i8x16.splat(8);
  for (let group: u32 = 0; group < count; group++) {
    v128.store(to, v128.load(from));
    nibbles_to_bytes(from + 16, to + 16, eight);
    from += INT4_GROUP;
    to += INT8_GROUP;
  }
}

/** Unpacks groups of uint4 for plain SIMD: scales and zeros as they are, integers 0 to 15 in bytes. */
function uint4_to_int8(from: usize, to: usize, count: u32): void {
  const none = i8x16.splat(0);
  for (let group: u32 = 0; group < count; group++) {
    v128.store(to, v128.load(from));
    v128.store(to, v128.load(from, 16), 16);
    nibbles_to_bytes(from + 32, to + 32, none);
    from += UINT4_GROUP;
    to += INT8_GROUP + 16;
  }
}

// @ts-ignore: decorator
@inline
function nibbles_to_bytes(from: usize, to: usize, less: v128): void {
  const mask = i8x16.splat(15);
  for (let i: usize = 0; i < 128; i += 16) {
    const v = v128.load(from + i);
    v128.store(to + 2 * i, i8x16.sub(v128.and(v, mask), less));
    v128.store(to + 2 * i, i8x16.sub(v128.and(i16x8.shr_u(v, 4), mask), less), 16);
  }
}

function tiles_int4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(SIGNED, q, qStride, w, count, sums, rows);
}

function tiles_uint4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(ZEROED, q, qStride, w, count, sums, rows);
}

function tiles_mxfp4_relaxed(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles_relaxed(TABLED, q, qStride, w, count, sums, rows);
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

/** sums[rows][8] += q[rows, count groups] · w; `rows` and `kind` are constants, so that each has its own code. */
// @ts-ignore: decorator
@inline
function tile(rows: i32, kind: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride,
    q2 = q1 + qStride,
    q3 = q2 + qStride;
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
    w += kind == SIGNED ? 16 : 32;
    // One pair of inputs per iteration: with more, the compiler holds so many loads ahead that sums leave their registers.
    for (const last = w + 256; w < last; w += 16) {
      const wa = v128.load_ext<i8>(w);
      const wb = v128.load_ext<i8>(w, 8);
      let s = v128.load32_splat(q0, 16);
      a0 = i32x4.add(a0, i32x4.dot_i16x8_s(s, wa));
      b0 = i32x4.add(b0, i32x4.dot_i16x8_s(s, wb));
      q0 += 4;
      if (rows > 1) {
        s = v128.load32_splat(q1, 16);
        a1 = i32x4.add(a1, i32x4.dot_i16x8_s(s, wa));
        b1 = i32x4.add(b1, i32x4.dot_i16x8_s(s, wb));
        q1 += 4;
      }
      if (rows > 2) {
        s = v128.load32_splat(q2, 16);
        a2 = i32x4.add(a2, i32x4.dot_i16x8_s(s, wa));
        b2 = i32x4.add(b2, i32x4.dot_i16x8_s(s, wb));
        q2 += 4;
        s = v128.load32_splat(q3, 16);
        a3 = i32x4.add(a3, i32x4.dot_i16x8_s(s, wa));
        b3 = i32x4.add(b3, i32x4.dot_i16x8_s(s, wb));
        q3 += 4;
      }
    }
    q0 += 16;
    q1 += 16;
    q2 += 16;
    q3 += 16;
    const scaleA = scales_of(kind, 1, scaleAt, 0);
    const scaleB = scales_of(kind, 1, scaleAt, 4);
    const zeroA = kind == ZEROED ? load4_f16(scaleAt + 16) : scaleA;
    const zeroB = kind == ZEROED ? load4_f16(scaleAt + 24) : scaleB;
    add_group(kind, sums, a0, b0, scaleA, scaleB, zeroA, zeroB, q0);
    if (rows > 1) add_group(kind, sums + 32, a1, b1, scaleA, scaleB, zeroA, zeroB, q1);
    if (rows > 2) {
      add_group(kind, sums + 64, a2, b2, scaleA, scaleB, zeroA, zeroB, q2);
      add_group(kind, sums + 96, a3, b3, scaleA, scaleB, zeroA, zeroB, q3);
    }
  }
}

/**
 * sums[rows][8] += q[rows, count groups] · w for int4, uint4 and mxfp4, like {@link tile} but with relaxed SIMD: i16 lanes are outputs, and
 * `a` and `b` each sum half of a group's pairs.
 */
// @ts-ignore: decorator
@inline
function tile_relaxed(rows: i32, kind: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride,
    q2 = q1 + qStride,
    q3 = q2 + qStride;
  for (const end = q0 + (count as usize) * Q_GROUP_BYTES; q0 < end; ) {
    let a0 = first_sum(kind, q0, 12);
    let b0 = first_sum(kind, q0, 14);
    let a1 = a0,
      b1 = b0,
      a2 = a0,
      b2 = b0,
      a3 = a0,
      b3 = b0;
    if (rows > 1) {
      a1 = first_sum(kind, q1, 12);
      b1 = first_sum(kind, q1, 14);
    }
    if (rows > 2) {
      a2 = first_sum(kind, q2, 12);
      b2 = first_sum(kind, q2, 14);
      a3 = first_sum(kind, q3, 12);
      b3 = first_sum(kind, q3, 14);
    }
    const scaleAt = w;
    w += kind == ZEROED ? 32 : kind == TABLED ? 8 : 16;
    for (const last = w + 128; w < last; w += 16) {
      const v = v128.load(w);
      const low = kind == TABLED ? raised_mxfp4(low_codes(v)) : low_codes(v);
      const high = kind == TABLED ? raised_mxfp4(high_codes(v)) : high_codes(v);
      a0 = i16x8.add(a0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0, 16), low));
      b0 = i16x8.add(b0, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q0, 20), high));
      q0 += 8;
      if (rows > 1) {
        a1 = i16x8.add(a1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1, 16), low));
        b1 = i16x8.add(b1, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q1, 20), high));
        q1 += 8;
      }
      if (rows > 2) {
        a2 = i16x8.add(a2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2, 16), low));
        b2 = i16x8.add(b2, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q2, 20), high));
        q2 += 8;
        a3 = i16x8.add(a3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3, 16), low));
        b3 = i16x8.add(b3, i16x8.relaxed_dot_i8x16_i7x16_s(v128.load32_splat(q3, 20), high));
        q3 += 8;
      }
    }
    q0 += 16;
    q1 += 16;
    q2 += 16;
    q3 += 16;
    const scaleA = scales_of(kind, 0, scaleAt, 0);
    const scaleB = scales_of(kind, 0, scaleAt, 4);
    const zeroA = kind == ZEROED ? load4_f16(scaleAt + 16) : scaleA;
    const zeroB = kind == ZEROED ? load4_f16(scaleAt + 24) : scaleB;
    add_halves(kind, sums, a0, b0, scaleA, scaleB, zeroA, zeroB, q0);
    if (rows > 1) add_halves(kind, sums + 32, a1, b1, scaleA, scaleB, zeroA, zeroB, q1);
    if (rows > 2) {
      add_halves(kind, sums + 64, a2, b2, scaleA, scaleB, zeroA, zeroB, q2);
      add_halves(kind, sums + 96, a3, b3, scaleA, scaleB, zeroA, zeroB, q3);
    }
  }
}
