/**
 * y[rows, outputs] (+)= x[rows, inner] · wᵀ (+ bias), f32, for a range of panels.
 *
 *   w is packed [panels][inner][8]: a panel holds 8 outputs, one lane each (two vectors).
 *   Every output has one accumulator and k ascends, in the four-row loop and in the one-row loop alike,
 *   so a row's bits do not depend on how many rows share its batch (E2).
 *
 * Strides are bytes. `bias` may be 0 (none). Pure function on raw pointers: no static data, no allocation, no mutable
 * globals, because every thread has its own instance over one shared memory. Callers own the layout; nothing is checked.
 */
import { madd } from './simd.as';

export function linear(
  x: usize,
  xStride: usize,
  w: usize,
  bias: usize,
  y: usize,
  yStride: usize,
  rows: u32,
  inner: u32,
  isAccumulating: u32,
  panelStart: u32,
  panelEnd: u32,
): void {
  const panelBytes: usize = (inner as usize) << 5;
  for (let panel = panelStart; panel < panelEnd; panel++) {
    const wPanel: usize = w + (panel as usize) * panelBytes;
    const wEnd: usize = wPanel + panelBytes;
    const yPanel: usize = y + ((panel as usize) << 5);
    const biasPanel: usize = bias ? bias + ((panel as usize) << 5) : 0;
    let row: u32 = 0;
    for (; row + 4 <= rows; row += 4) {
      let x0: usize = x + (row as usize) * xStride;
      let x1: usize = x0 + xStride;
      let x2: usize = x1 + xStride;
      let x3: usize = x2 + xStride;
      let a0 = f32x4.splat(0),
        b0 = a0,
        a1 = a0,
        b1 = a0,
        a2 = a0,
        b2 = a0,
        a3 = a0,
        b3 = a0;
      for (let wk: usize = wPanel; wk < wEnd; wk += 32) {
        const wa = v128.load(wk);
        const wb = v128.load(wk, 16);
        let s = v128.load32_splat(x0);
        a0 = madd(s, wa, a0);
        b0 = madd(s, wb, b0);
        s = v128.load32_splat(x1);
        a1 = madd(s, wa, a1);
        b1 = madd(s, wb, b1);
        s = v128.load32_splat(x2);
        a2 = madd(s, wa, a2);
        b2 = madd(s, wb, b2);
        s = v128.load32_splat(x3);
        a3 = madd(s, wa, a3);
        b3 = madd(s, wb, b3);
        x0 += 4;
        x1 += 4;
        x2 += 4;
        x3 += 4;
      }
      let yRow: usize = yPanel + (row as usize) * yStride;
      store8(yRow, a0, b0, biasPanel, isAccumulating);
      yRow += yStride;
      store8(yRow, a1, b1, biasPanel, isAccumulating);
      yRow += yStride;
      store8(yRow, a2, b2, biasPanel, isAccumulating);
      yRow += yStride;
      store8(yRow, a3, b3, biasPanel, isAccumulating);
    }
    for (; row < rows; row++) {
      let xk: usize = x + (row as usize) * xStride;
      let a = f32x4.splat(0),
        b = a;
      for (let wk: usize = wPanel; wk < wEnd; wk += 32) {
        const s = v128.load32_splat(xk);
        a = madd(s, v128.load(wk), a);
        b = madd(s, v128.load(wk, 16), b);
        xk += 4;
      }
      store8(yPanel + (row as usize) * yStride, a, b, biasPanel, isAccumulating);
    }
  }
}

// @ts-ignore: decorator
@inline
function store8(at: usize, a0: v128, b0: v128, bias: usize, isAccumulating: u32): void {
  let a = a0,
    b = b0;
  if (bias) {
    a = f32x4.add(a, v128.load(bias));
    b = f32x4.add(b, v128.load(bias, 16));
  }
  if (isAccumulating) {
    a = f32x4.add(v128.load(at), a);
    b = f32x4.add(v128.load(at, 16), b);
  }
  v128.store(at, a);
  v128.store(at, b, 16);
}
