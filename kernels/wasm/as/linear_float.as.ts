/**
 * y[rows, outputs] (+)= x[rows, inner] · wᵀ (+ bias), f32 arithmetic, weights f32 or f16, for a range of panels.
 *
 *   w        packed [panels][inner][8]: a panel holds 8 outputs, one lane each (two vectors)
 *   scratch  sums [ROW_BLOCK][8] f32, a cache line, then a slice of unpacked weights [SLICE][8] f32
 *
 * Blocked as matrix products are: the caller's rows, at most ROW_BLOCK, stay in the second-level cache while panels stream past them, a slice of at most
 * SLICE inputs of a panel (10 KiB, and the next one) stays in the first while its rows pass, a tile of 6 × 8 sums lives in registers. f16 is
 * unpacked once per slice; one row alone converts in registers instead and takes four panels at a time, so that eight chains
 * of additions hide their latency and four streams that of memory.
 *
 * Every output has one accumulator and k ascends, whatever the tile, so a row's bits do not depend on how many rows share its
 * batch (E2). Strides are bytes; `bias` may be 0 (none). Pure functions on raw pointers: no static data, no allocation, no mutable
 * globals, because every thread has its own instance over one shared memory. Callers own the layout; nothing is checked.
 */
import { AFTER_SUMS, F16, FEW_ROWS, finish8, finish_four, LinearParams, SINK } from './panels.as';
import { load4_f16, madd, touch } from './simd.as';

/** Most inputs of a panel per slice: 320 · 8 f32 are 10 KiB, so a slice and the next one stay in the first-level cache. */
export const SLICE: u32 = 320;
/** Inputs per slice with at most FEW_ROWS rows: 1 KiB of f32, or of f16 with twice as many. */
const SHORT_SLICE: u32 = 32;

/** Computes the outputs of rows [first, first + rows) and panels [panelStart, panelEnd). */
export function linear_float(
  params: LinearParams,
  first: u32,
  rows: u32,
  panelStart: u32,
  panelEnd: u32,
  scratch: usize,
): void {
  const xStride = params.xStride;
  const x = params.x + (first as usize) * xStride;
  const w = params.weight;
  const isF16: u32 = params.format == F16 ? 1 : 0;
  const yStride = params.outStride;
  const y = params.out + (first as usize) * yStride;
  const inner = params.inner;
  const inputBytes: usize = isF16 ? 16 : 32;
  const panelBytes = (inner as usize) * inputBytes;
  const unpacked = scratch + AFTER_SUMS;
  const numSlices = (inner + SLICE - 1) / SLICE;
  const evenSlice = (inner + numSlices - 1) / numSlices;
  let panel = panelStart;
  if (isF16 && rows == 1) {
    // Each iteration takes one panel of each quarter: four long streams, which suit the prefetchers of a CPU best.
    const quarter = (panelEnd - panelStart) >> 2;
    const apart = (quarter as usize) * panelBytes;
    for (const end = panelStart + quarter; panel < end; panel++) {
      four_panels_f16(x, w + (panel as usize) * panelBytes, apart, inner, scratch);
      finish_four(params, y, scratch, panel, quarter);
    }
    panel = panelStart + 4 * quarter;
  }
  const most = rows > FEW_ROWS ? evenSlice : isF16 ? 2 * SHORT_SLICE : SHORT_SLICE;
  for (; panel < panelEnd; panel++) {
    memory.fill(scratch, 0, (rows as usize) << 5);
    const wPanel = w + (panel as usize) * panelBytes;
    for (let k: u32 = 0; k < inner; k += most) {
      const count = min<u32>(most, inner - k);
      let from = wPanel + (k as usize) * inputBytes;
      touch(from + (count as usize) * inputBytes, (count as usize) * inputBytes, scratch + SINK);
      if (isF16) {
        unpack(from, unpacked, count);
        from = unpacked;
      }
      tiles(x + ((k as usize) << 2), xStride, from, count, scratch, rows);
    }
    for (let row: u32 = 0; row < rows; row++) {
      const to = y + (row as usize) * yStride + ((panel as usize) << 5);
      finish8(params, to, scratch + ((row as usize) << 5), panel);
    }
  }
}

/** Converts a slice of f16 weights, `count` inputs of 8 outputs, to f32. */
function unpack(from: usize, to: usize, count: u32): void {
  const end = from + ((count as usize) << 4);
  for (; from < end; from += 16) {
    v128.store(to, load4_f16(from));
    v128.store(to, load4_f16(from + 8), 16);
    to += 32;
  }
}

function tiles(x: usize, xStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 6 <= rows; row += 6) {
    tile6(x, xStride, w, count, sums);
    x += 6 * xStride;
    sums += 6 * 32;
  }
  if (row + 4 <= rows) {
    tile4(x, xStride, w, count, sums);
    row += 4;
    x += 4 * xStride;
    sums += 4 * 32;
  }
  if (row + 2 <= rows) {
    tile2(x, xStride, w, count, sums);
    row += 2;
    x += 2 * xStride;
    sums += 2 * 32;
  }
  if (row < rows) tile1(x, xStride, w, count, sums);
}

function tile6(x: usize, xStride: usize, w: usize, count: u32, sums: usize): void {
  tile(6, x, xStride, w, count, sums);
}

function tile4(x: usize, xStride: usize, w: usize, count: u32, sums: usize): void {
  tile(4, x, xStride, w, count, sums);
}

function tile2(x: usize, xStride: usize, w: usize, count: u32, sums: usize): void {
  tile(2, x, xStride, w, count, sums);
}

function tile1(x: usize, xStride: usize, w: usize, count: u32, sums: usize): void {
  tile(1, x, xStride, w, count, sums);
}

/** sums[rows][8] += x[rows, count] · w[count][8]; `rows` is a constant, so that each size is its own code. */
// @ts-ignore: decorator
@inline
function tile(rows: i32, x0: usize, xStride: usize, w: usize, count: u32, sums: usize): void {
  let x1 = x0 + xStride,
    x2 = x1 + xStride,
    x3 = x2 + xStride,
    x4 = x3 + xStride,
    x5 = x4 + xStride;
  let a0 = v128.load(sums),
    b0 = v128.load(sums, 16);
  let a1 = a0,
    b1 = b0,
    a2 = a0,
    b2 = b0,
    a3 = a0,
    b3 = b0,
    a4 = a0,
    b4 = b0,
    a5 = a0,
    b5 = b0;
  if (rows > 1) {
    a1 = v128.load(sums, 32);
    b1 = v128.load(sums, 48);
  }
  if (rows > 2) {
    a2 = v128.load(sums, 64);
    b2 = v128.load(sums, 80);
    a3 = v128.load(sums, 96);
    b3 = v128.load(sums, 112);
  }
  if (rows > 4) {
    a4 = v128.load(sums, 128);
    b4 = v128.load(sums, 144);
    a5 = v128.load(sums, 160);
    b5 = v128.load(sums, 176);
  }
  // One input per iteration: with more, the compiler holds so many loads ahead that sums leave their registers.
  for (const end = w + ((count as usize) << 5); w < end; w += 32) {
    const wa = v128.load(w);
    const wb = v128.load(w, 16);
    let s = v128.load32_splat(x0);
    a0 = madd(s, wa, a0);
    b0 = madd(s, wb, b0);
    x0 += 4;
    if (rows > 1) {
      s = v128.load32_splat(x1);
      a1 = madd(s, wa, a1);
      b1 = madd(s, wb, b1);
      x1 += 4;
    }
    if (rows > 2) {
      s = v128.load32_splat(x2);
      a2 = madd(s, wa, a2);
      b2 = madd(s, wb, b2);
      x2 += 4;
      s = v128.load32_splat(x3);
      a3 = madd(s, wa, a3);
      b3 = madd(s, wb, b3);
      x3 += 4;
    }
    if (rows > 4) {
      s = v128.load32_splat(x4);
      a4 = madd(s, wa, a4);
      b4 = madd(s, wb, b4);
      x4 += 4;
      s = v128.load32_splat(x5);
      a5 = madd(s, wa, a5);
      b5 = madd(s, wb, b5);
      x5 += 4;
    }
  }
  v128.store(sums, a0);
  v128.store(sums, b0, 16);
  if (rows > 1) {
    v128.store(sums, a1, 32);
    v128.store(sums, b1, 48);
  }
  if (rows > 2) {
    v128.store(sums, a2, 64);
    v128.store(sums, b2, 80);
    v128.store(sums, a3, 96);
    v128.store(sums, b3, 112);
  }
  if (rows > 4) {
    v128.store(sums, a4, 128);
    v128.store(sums, b4, 144);
    v128.store(sums, a5, 160);
    v128.store(sums, b5, 176);
  }
}

/** sums[4][8] = x[inner] · four panels of f16, `apart` bytes from one another, converted in registers. */
function four_panels_f16(x: usize, w0: usize, apart: usize, inner: u32, sums: usize): void {
  let w1 = w0 + apart,
    w2 = w1 + apart,
    w3 = w2 + apart;
  let a = f32x4.splat(0),
    b = a,
    c = a,
    d = a,
    e = a,
    f = a,
    g = a,
    h = a;
  for (const end = x + ((inner as usize) << 2); x < end; x += 4) {
    const s = v128.load32_splat(x);
    a = madd(s, load4_f16(w0), a);
    b = madd(s, load4_f16(w0 + 8), b);
    c = madd(s, load4_f16(w1), c);
    d = madd(s, load4_f16(w1 + 8), d);
    e = madd(s, load4_f16(w2), e);
    f = madd(s, load4_f16(w2 + 8), f);
    g = madd(s, load4_f16(w3), g);
    h = madd(s, load4_f16(w3 + 8), h);
    w0 += 16;
    w1 += 16;
    w2 += 16;
    w3 += 16;
  }
  v128.store(sums, a);
  v128.store(sums, b, 16);
  v128.store(sums, c, 32);
  v128.store(sums, d, 48);
  v128.store(sums, e, 64);
  v128.store(sums, f, 80);
  v128.store(sums, g, 96);
  v128.store(sums, h, 112);
}
