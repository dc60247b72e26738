/**
 * Products of codes of a table with one row where no instruction multiplies nibbles: four panels side by side, whose codes become bytes
 * in registers. See linear_int.as.ts.
 */
import { IQ4_GROUP, MXFP4_GROUP } from './panels.as';
import { Q_GROUP_BYTES } from './quantise.as';
import { madd } from './simd.as';
import {
  high_codes,
  integers_of_iq4,
  integers_of_mxfp4,
  low_codes,
  scales_of_iq4,
  scales_of_mxfp4,
} from './table_codes.as';

/** sums[4][8] = one row · four panels of iq4, `apart` bytes from one another. */
export function four_panels_iq4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_codes(1, q, w, apart, groups, sums);
}

/** sums[4][8] = one row · four panels of mxfp4, `apart` bytes from one another; for plain SIMD. */
export function four_panels_mxfp4_plain(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_codes(0, q, w, apart, groups, sums);
}

// @ts-ignore: decorator
@inline
function four_panels_of_codes(isIq4: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  const head: usize = isIq4 ? 16 : 8;
  const groupBytes = isIq4 ? IQ4_GROUP : MXFP4_GROUP;
  let w1 = w0 + apart,
    w2 = w1 + apart,
    w3 = w2 + apart;
  memory.fill(sums, 0, 128);
  for (const end = q + (groups as usize) * Q_GROUP_BYTES; q < end; q += Q_GROUP_BYTES) {
    let a = i32x4.splat(0),
      b = a,
      c = a,
      d = a,
      e = a,
      f = a,
      g = a,
      h = a;
    for (let offset: usize = 0; offset < 128; offset += 16) {
      const x = v128.load32_splat(q + (offset >> 1), 16);
      const y = v128.load32_splat(q + (offset >> 1), 20);
      const v0 = v128.load(w0 + offset + head);
      a = i32x4.add(a, low_dots(isIq4, v0, x, y));
      b = i32x4.add(b, high_dots(isIq4, v0, x, y));
      const v1 = v128.load(w1 + offset + head);
      c = i32x4.add(c, low_dots(isIq4, v1, x, y));
      d = i32x4.add(d, high_dots(isIq4, v1, x, y));
      const v2 = v128.load(w2 + offset + head);
      e = i32x4.add(e, low_dots(isIq4, v2, x, y));
      f = i32x4.add(f, high_dots(isIq4, v2, x, y));
      const v3 = v128.load(w3 + offset + head);
      g = i32x4.add(g, low_dots(isIq4, v3, x, y));
      h = i32x4.add(h, high_dots(isIq4, v3, x, y));
    }
    const scale = v128.load32_splat(q);
    add_panel(isIq4, sums, a, b, w0, scale);
    add_panel(isIq4, sums + 32, c, d, w1, scale);
    add_panel(isIq4, sums + 64, e, f, w2, scale);
    add_panel(isIq4, sums + 96, g, h, w3, scale);
    w0 += groupBytes;
    w1 += groupBytes;
    w2 += groupBytes;
    w3 += groupBytes;
  }
}

/** Returns the products of outputs 0 to 3 with four inputs: `x` has the two in low nibbles, `y` those in high ones, as i16. */
// @ts-ignore: decorator
@inline
function low_dots(isIq4: i32, codes: v128, x: v128, y: v128): v128 {
  const low = i32x4.dot_i16x8_s(x, i16x8.extend_low_i8x16_s(integers(isIq4, low_codes(codes))));
  return i32x4.add(low, i32x4.dot_i16x8_s(y, i16x8.extend_low_i8x16_s(integers(isIq4, high_codes(codes)))));
}

/** Returns the products of outputs 4 to 7, like {@link low_dots}. */
// @ts-ignore: decorator
@inline
function high_dots(isIq4: i32, codes: v128, x: v128, y: v128): v128 {
  const low = i32x4.dot_i16x8_s(x, i16x8.extend_high_i8x16_s(integers(isIq4, low_codes(codes))));
  return i32x4.add(low, i32x4.dot_i16x8_s(y, i16x8.extend_high_i8x16_s(integers(isIq4, high_codes(codes)))));
}

// @ts-ignore: decorator
@inline
function integers(isIq4: i32, codes: v128): v128 {
  return isIq4 ? integers_of_iq4(codes) : integers_of_mxfp4(codes);
}

/** Adds the sums of one group of a panel, which begins at `w` with its scales. */
// @ts-ignore: decorator
@inline
function add_panel(isIq4: i32, sums: usize, a: v128, b: v128, w: usize, scale: v128): void {
  const scaleA = isIq4 ? scales_of_iq4(w) : scales_of_mxfp4(w);
  const scaleB = isIq4 ? scales_of_iq4(w + 8) : scales_of_mxfp4(w + 4);
  v128.store(sums, madd(f32x4.convert_i32x4_s(a), f32x4.mul(scaleA, scale), v128.load(sums)));
  v128.store(sums, madd(f32x4.convert_i32x4_s(b), f32x4.mul(scaleB, scale), v128.load(sums, 16)), 16);
}
