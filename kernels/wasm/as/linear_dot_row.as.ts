/** Products of integers with one row by dot products of bytes: four panels side by side, at the speed of memory. See linear_dot.as.ts. */
import { dot, group_of, int8_of, integers_of } from './dot_weights.as';
import { add_panel, CODED, EXPONENT, first_sum, head_bytes, SIGNED, ZEROED } from './int_groups.as';
import { INT4, INT8, INT8_GROUP, MXFP4, UINT4 } from './panels.as';
import { Q_BYTES_GROUP } from './quantise.as';
import { high_codes, low_codes } from './table_codes.as';

/** sums[4][8] = one row · four panels, `apart` bytes from one another. */
// @ts-ignore: decorator
@inline
export function four_panels_dot(format: u32, isSigned: bool, q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  if (format == INT8) {
    if (isSigned) dot_row_int8_signed(q, w, apart, groups, sums);
    else dot_row_int8(q, w, apart, groups, sums);
  } else if (format == INT4) dot_row_int4(q, w, apart, groups, sums);
  else if (format == UINT4) dot_row_uint4(q, w, apart, groups, sums);
  else if (format == MXFP4) dot_row_mxfp4(q, w, apart, groups, sums);
  else if (isSigned) dot_row_iq4_signed(q, w, apart, groups, sums);
  else dot_row_iq4(q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of int8. */
export function dot_row_int8(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_int8(0, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of int8 where bytes are signed. */
export function dot_row_int8_signed(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_int8(1, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of int4. */
export function dot_row_int4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_codes(SIGNED, 0, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of uint4. */
export function dot_row_uint4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_codes(ZEROED, 0, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of mxfp4. */
export function dot_row_mxfp4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_codes(EXPONENT, 0, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of iq4. */
export function dot_row_iq4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_codes(CODED, 0, q, w, apart, groups, sums);
}

/** {@link four_panels_dot} of iq4 where bytes are signed. */
export function dot_row_iq4_signed(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_codes(CODED, 1, q, w, apart, groups, sums);
}

// @ts-ignore: decorator
@inline
function four_panels_int8(isSigned: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  memory.fill(sums, 0, 128);
  for (const end = q + (groups as usize) * Q_BYTES_GROUP; q < end; q += Q_BYTES_GROUP) {
    const w1 = w0 + apart;
    const w2 = w1 + apart;
    const w3 = w2 + apart;
    let a = first_sum(q);
    let b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (let offset: usize = 0; offset < 256; offset += 32) {
      const x = v128.load32_splat(q + (offset >> 3), 16);
      a = dot(x, int8_of(isSigned, v128.load(w0 + offset, 16)), a);
      b = dot(x, int8_of(isSigned, v128.load(w0 + offset, 32)), b);
      c = dot(x, int8_of(isSigned, v128.load(w1 + offset, 16)), c);
      d = dot(x, int8_of(isSigned, v128.load(w1 + offset, 32)), d);
      e = dot(x, int8_of(isSigned, v128.load(w2 + offset, 16)), e);
      f = dot(x, int8_of(isSigned, v128.load(w2 + offset, 32)), f);
      g = dot(x, int8_of(isSigned, v128.load(w3 + offset, 16)), g);
      h = dot(x, int8_of(isSigned, v128.load(w3 + offset, 32)), h);
    }
    add_panel(SIGNED, sums, a, b, w0, q);
    add_panel(SIGNED, sums + 32, c, d, w1, q);
    add_panel(SIGNED, sums + 64, e, f, w2, q);
    add_panel(SIGNED, sums + 96, g, h, w3, q);
    w0 += INT8_GROUP;
  }
}

// @ts-ignore: decorator
@inline
function four_panels_codes(kind: i32, isSigned: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  memory.fill(sums, 0, 128);
  for (const end = q + (groups as usize) * Q_BYTES_GROUP; q < end; q += Q_BYTES_GROUP) {
    const w1 = w0 + apart;
    const w2 = w1 + apart;
    const w3 = w2 + apart;
    let a = first_sum(q);
    let b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (let offset: usize = 0; offset < 128; offset += 32) {
      const x = v128.load32_splat(q + (offset >> 2), 16);
      const y = v128.load32_splat(q + (offset >> 2), 20);
      const at = offset + head_bytes(kind);
      a = both_dots(kind, isSigned, x, y, v128.load(w0 + at), a);
      b = both_dots(kind, isSigned, x, y, v128.load(w0 + at, 16), b);
      c = both_dots(kind, isSigned, x, y, v128.load(w1 + at), c);
      d = both_dots(kind, isSigned, x, y, v128.load(w1 + at, 16), d);
      e = both_dots(kind, isSigned, x, y, v128.load(w2 + at), e);
      f = both_dots(kind, isSigned, x, y, v128.load(w2 + at, 16), f);
      g = both_dots(kind, isSigned, x, y, v128.load(w3 + at), g);
      h = both_dots(kind, isSigned, x, y, v128.load(w3 + at, 16), h);
    }
    add_panel(kind, sums, a, b, w0, q);
    add_panel(kind, sums + 32, c, d, w1, q);
    add_panel(kind, sums + 64, e, f, w2, q);
    add_panel(kind, sums + 96, g, h, w3, q);
    w0 += group_of(kind);
  }
}

/** Returns `sum` plus the products of eight inputs with four outputs: `x` has the inputs in low nibbles, `y` those in high ones. */
// @ts-ignore: decorator
@inline
function both_dots(kind: i32, isSigned: i32, x: v128, y: v128, codes: v128, sum: v128): v128 {
  const low = dot(x, integers_of(kind, isSigned, low_codes(codes)), sum);
  return dot(y, integers_of(kind, isSigned, high_codes(codes)), low);
}
