/**
 * Products of codes of a table with one row where no instruction multiplies nibbles: four panels side by side, whose codes become bytes
 * in registers. See linear_int.as.ts.
 */
import { add_panel, CODED, EXPONENT, first_sum, head_bytes } from './int_groups.as';
import { quad_dots } from './linear_int_row.as';
import { IQ4_GROUP, MXFP4_GROUP } from './panels.as';
import { Q_GROUP_BYTES } from './quantise.as';
import { high_codes, low_codes, raised_iq4, raised_mxfp4 } from './table_codes.as';

/** sums[4][8] = one row, as i16, · four panels of iq4, `apart` bytes from one another. */
export function four_panels_iq4(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_codes(CODED, q, w, apart, groups, sums);
}

/** sums[4][8] = one row, as i16, · four panels of mxfp4, `apart` bytes from one another. */
export function four_panels_mxfp4_plain(q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_codes(EXPONENT, q, w, apart, groups, sums);
}

// @ts-ignore: decorator
@inline
function four_panels_of_codes(kind: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  memory.fill(sums, 0, 128);
  for (const end = q + (groups as usize) * Q_GROUP_BYTES; q < end; q += Q_GROUP_BYTES) {
    const w1 = w0 + apart;
    const w2 = w1 + apart;
    const w3 = w2 + apart;
    let a = first_sum(q);
    let b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (let offset: usize = 0; offset < 128; offset += 32) {
      const x = q + (offset >> 1);
      const at = offset + head_bytes(kind);
      a = code_dots(kind, x, v128.load(w0 + at), a);
      b = code_dots(kind, x, v128.load(w0 + at, 16), b);
      c = code_dots(kind, x, v128.load(w1 + at), c);
      d = code_dots(kind, x, v128.load(w1 + at, 16), d);
      e = code_dots(kind, x, v128.load(w2 + at), e);
      f = code_dots(kind, x, v128.load(w2 + at, 16), f);
      g = code_dots(kind, x, v128.load(w3 + at), g);
      h = code_dots(kind, x, v128.load(w3 + at, 16), h);
    }
    add_panel(kind, sums, a, b, w0, q);
    add_panel(kind, sums + 32, c, d, w1, q);
    add_panel(kind, sums + 64, e, f, w2, q);
    add_panel(kind, sums + 96, g, h, w3, q);
    w0 += kind == CODED ? IQ4_GROUP : MXFP4_GROUP;
  }
}

/** Returns `sum` plus the products of eight inputs, which begin at byte 16 of `x`, with four outputs. */
// @ts-ignore: decorator
@inline
function code_dots(kind: i32, x: usize, codes: v128, sum: v128): v128 {
  sum = quad_dots(v128.load32_splat(x, 16), v128.load32_splat(x, 20), raised(kind, low_codes(codes)), sum);
  return quad_dots(v128.load32_splat(x, 24), v128.load32_splat(x, 28), raised(kind, high_codes(codes)), sum);
}

// @ts-ignore: decorator
@inline
function raised(kind: i32, codes: v128): v128 {
  return kind == CODED ? raised_iq4(codes) : raised_mxfp4(codes);
}
