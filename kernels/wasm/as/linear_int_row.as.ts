/** Products of integers with one row, as in decode at batch 1: four panels side by side, at the speed of memory. See linear_int.as.ts. */
import { add_panel, EXPONENT, first_halves, first_sum, head_bytes, SIGNED, whole_sums, ZEROED } from './int_groups.as';
import { INT4_GROUP, INT8_GROUP, MXFP4_GROUP, UINT4_GROUP } from './panels.as';
import { Q_BYTES_GROUP, Q_GROUP_BYTES } from './quantise.as';
import { high_codes, low_codes, raised_mxfp4 } from './table_codes.as';

/** sums[4][8] = one row, as i16, · four panels of int8, `apart` bytes from one another. */
export function four_panels_int8(q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  memory.fill(sums, 0, 128);
  for (const end = q + (groups as usize) * Q_GROUP_BYTES; q < end; q += Q_GROUP_BYTES) {
    const w1 = w0 + apart;
    const w2 = w1 + apart;
    const w3 = w2 + apart;
    let a = first_sum(q);
    let b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (let offset: usize = 0; offset < 256; offset += 32) {
      const x = v128.load32_splat(q + (offset >> 2), 16);
      const y = v128.load32_splat(q + (offset >> 2), 20);
      a = quad_dots(x, y, v128.load(w0 + offset, 16), a);
      b = quad_dots(x, y, v128.load(w0 + offset, 32), b);
      c = quad_dots(x, y, v128.load(w1 + offset, 16), c);
      d = quad_dots(x, y, v128.load(w1 + offset, 32), d);
      e = quad_dots(x, y, v128.load(w2 + offset, 16), e);
      f = quad_dots(x, y, v128.load(w2 + offset, 32), f);
      g = quad_dots(x, y, v128.load(w3 + offset, 16), g);
      h = quad_dots(x, y, v128.load(w3 + offset, 32), h);
    }
    add_panel(SIGNED, sums, a, b, w0, q);
    add_panel(SIGNED, sums + 32, c, d, w1, q);
    add_panel(SIGNED, sums + 64, e, f, w2, q);
    add_panel(SIGNED, sums + 96, g, h, w3, q);
    w0 += INT8_GROUP;
  }
}

/** Returns `sum` plus the products of four inputs with four outputs: `x` has the even inputs, `y` the odd ones, as i16. */
// @ts-ignore: decorator
@inline
export function quad_dots(x: v128, y: v128, bytes: v128, sum: v128): v128 {
  sum = i32x4.add(sum, i32x4.dot_i16x8_s(x, v128.and(bytes, i16x8.splat(255))));
  return i32x4.add(sum, i32x4.dot_i16x8_s(y, i16x8.shr_u(bytes, 8)));
}

/** sums[4][8] = one row · four panels of int4. */
export function four_panels_int4(q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_nibbles(SIGNED, q, w0, apart, groups, sums);
}

/** sums[4][8] = one row · four panels of uint4. */
export function four_panels_uint4(q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_nibbles(ZEROED, q, w0, apart, groups, sums);
}

/** sums[4][8] = one row · four panels of mxfp4. */
export function four_panels_mxfp4(q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  four_panels_of_nibbles(EXPONENT, q, w0, apart, groups, sums);
}

/**
 * sums[4][8] = one row · four panels of int4, uint4 or mxfp4, computed like `tile_relaxed` of linear_int.as.ts. `kind` is a compile-time
 * constant.
 */
// @ts-ignore: decorator
@inline
function four_panels_of_nibbles(kind: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  const groupBytes = kind == ZEROED ? UINT4_GROUP : kind == EXPONENT ? MXFP4_GROUP : INT4_GROUP;
  memory.fill(sums, 0, 128);
  for (const last = q + (groups as usize) * Q_BYTES_GROUP; q < last; q += Q_BYTES_GROUP) {
    const w1 = w0 + apart;
    const w2 = w1 + apart;
    const w3 = w2 + apart;
    let a = first_halves(kind, q);
    let b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (let offset: usize = 0; offset < 128; offset += 32) {
      const x = v128.load32_splat(q + (offset >> 2), 16);
      const y = v128.load32_splat(q + (offset >> 2), 20);
      const at = offset + head_bytes(kind);
      a = nibble_products(kind, x, y, v128.load(w0 + at), a);
      b = nibble_products(kind, x, y, v128.load(w0 + at, 16), b);
      c = nibble_products(kind, x, y, v128.load(w1 + at), c);
      d = nibble_products(kind, x, y, v128.load(w1 + at, 16), d);
      e = nibble_products(kind, x, y, v128.load(w2 + at), e);
      f = nibble_products(kind, x, y, v128.load(w2 + at, 16), f);
      g = nibble_products(kind, x, y, v128.load(w3 + at), g);
      h = nibble_products(kind, x, y, v128.load(w3 + at, 16), h);
    }
    add_panel(kind, sums, whole_sums(kind, a, q), whole_sums(kind, b, q), w0, q);
    add_panel(kind, sums + 32, whole_sums(kind, c, q), whole_sums(kind, d, q), w1, q);
    add_panel(kind, sums + 64, whole_sums(kind, e, q), whole_sums(kind, f, q), w2, q);
    add_panel(kind, sums + 96, whole_sums(kind, g, q), whole_sums(kind, h, q), w3, q);
    w0 += groupBytes;
  }
}

/** Returns `sum`, two i16 of each output, plus the products of eight inputs: `x` has those in low nibbles, `y` those in high ones. */
// @ts-ignore: decorator
@inline
function nibble_products(kind: i32, x: v128, y: v128, bytes: v128, sum: v128): v128 {
  const low = kind == EXPONENT ? raised_mxfp4(low_codes(bytes)) : low_codes(bytes);
  const high = kind == EXPONENT ? raised_mxfp4(high_codes(bytes)) : high_codes(bytes);
  sum = i16x8.add(sum, i16x8.relaxed_dot_i8x16_i7x16_s(x, low));
  return i16x8.add(sum, i16x8.relaxed_dot_i8x16_i7x16_s(y, high));
}
