/** Products of integers with one row, as in decode at batch 1: four panels side by side, at the speed of memory. See linear_int.as.ts. */
import { add_halves, first_sum, scales_of, SIGNED, TABLED, ZEROED } from './int_groups.as';
import { INT4_GROUP, INT8_GROUP, MXFP4_GROUP, UINT4_GROUP } from './panels.as';
import { Q_GROUP_BYTES } from './quantise.as';
import { load4_f16, madd } from './simd.as';
import { high_codes, low_codes, raised_mxfp4 } from './table_codes.as';

/** sums[4][8] = one row · four panels of int8, `apart` bytes from one another; sums stay in registers. */
export function four_panels_int8(q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  let w1 = w0 + apart,
    w2 = w1 + apart,
    w3 = w2 + apart;
  let sa = f32x4.splat(0),
    sb = sa,
    sc = sa,
    sd = sa,
    se = sa,
    sf = sa,
    sg = sa,
    sh = sa;
  for (const end = q + (groups as usize) * Q_GROUP_BYTES; q < end; ) {
    let a = i32x4.splat(0),
      b = a,
      c = a,
      d = a,
      e = a,
      f = a,
      g = a,
      h = a;
    for (let offset: usize = 0; offset < 256; offset += 32) {
      let x = v128.load32_splat(q + (offset >> 2), 16);
      a = i32x4.add(a, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w0 + offset, 16)));
      b = i32x4.add(b, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w0 + offset, 24)));
      c = i32x4.add(c, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w1 + offset, 16)));
      d = i32x4.add(d, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w1 + offset, 24)));
      e = i32x4.add(e, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w2 + offset, 16)));
      f = i32x4.add(f, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w2 + offset, 24)));
      g = i32x4.add(g, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w3 + offset, 16)));
      h = i32x4.add(h, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w3 + offset, 24)));
      x = v128.load32_splat(q + (offset >> 2), 20);
      a = i32x4.add(a, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w0 + offset, 32)));
      b = i32x4.add(b, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w0 + offset, 40)));
      c = i32x4.add(c, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w1 + offset, 32)));
      d = i32x4.add(d, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w1 + offset, 40)));
      e = i32x4.add(e, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w2 + offset, 32)));
      f = i32x4.add(f, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w2 + offset, 40)));
      g = i32x4.add(g, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w3 + offset, 32)));
      h = i32x4.add(h, i32x4.dot_i16x8_s(x, v128.load_ext<i8>(w3 + offset, 40)));
    }
    const scale = v128.load32_splat(q);
    sa = madd(f32x4.convert_i32x4_s(a), f32x4.mul(load4_f16(w0), scale), sa);
    sb = madd(f32x4.convert_i32x4_s(b), f32x4.mul(load4_f16(w0 + 8), scale), sb);
    sc = madd(f32x4.convert_i32x4_s(c), f32x4.mul(load4_f16(w1), scale), sc);
    sd = madd(f32x4.convert_i32x4_s(d), f32x4.mul(load4_f16(w1 + 8), scale), sd);
    se = madd(f32x4.convert_i32x4_s(e), f32x4.mul(load4_f16(w2), scale), se);
    sf = madd(f32x4.convert_i32x4_s(f), f32x4.mul(load4_f16(w2 + 8), scale), sf);
    sg = madd(f32x4.convert_i32x4_s(g), f32x4.mul(load4_f16(w3), scale), sg);
    sh = madd(f32x4.convert_i32x4_s(h), f32x4.mul(load4_f16(w3 + 8), scale), sh);
    q += Q_GROUP_BYTES;
    w0 += INT8_GROUP;
    w1 += INT8_GROUP;
    w2 += INT8_GROUP;
    w3 += INT8_GROUP;
  }
  v128.store(sums, sa);
  v128.store(sums, sb, 16);
  v128.store(sums, sc, 32);
  v128.store(sums, sd, 48);
  v128.store(sums, se, 64);
  v128.store(sums, sf, 80);
  v128.store(sums, sg, 96);
  v128.store(sums, sh, 112);
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
  four_panels_of_nibbles(TABLED, q, w0, apart, groups, sums);
}

/**
 * sums[4][8] = one row · four panels of int4, uint4 or mxfp4, computed like `tile_relaxed` of linear_int.as.ts. `kind` is a compile-time
 * constant.
 */
// @ts-ignore: decorator
@inline
function four_panels_of_nibbles(kind: i32, q: usize, w0: usize, apart: usize, groups: u32, sums: usize): void {
  let w1 = w0 + apart,
    w2 = w1 + apart,
    w3 = w2 + apart;
  const first: usize = kind == ZEROED ? 32 : kind == TABLED ? 8 : 16;
  const groupBytes = kind == ZEROED ? UINT4_GROUP : kind == TABLED ? MXFP4_GROUP : INT4_GROUP;
  memory.fill(sums, 0, 128);
  for (const last = q + (groups as usize) * Q_GROUP_BYTES; q < last; q += Q_GROUP_BYTES) {
    let a = first_sum(kind, q, 12),
      b = first_sum(kind, q, 14),
      c = a,
      d = b,
      e = a,
      f = b,
      g = a,
      h = b;
    for (let offset: usize = 0; offset < 128; offset += 16) {
      const x = v128.load32_splat(q + (offset >> 1), 16);
      const y = v128.load32_splat(q + (offset >> 1), 20);
      let v = v128.load(w0 + offset + first);
      a = i16x8.add(a, i16x8.relaxed_dot_i8x16_i7x16_s(x, low_of(kind, v)));
      b = i16x8.add(b, i16x8.relaxed_dot_i8x16_i7x16_s(y, high_of(kind, v)));
      v = v128.load(w1 + offset + first);
      c = i16x8.add(c, i16x8.relaxed_dot_i8x16_i7x16_s(x, low_of(kind, v)));
      d = i16x8.add(d, i16x8.relaxed_dot_i8x16_i7x16_s(y, high_of(kind, v)));
      v = v128.load(w2 + offset + first);
      e = i16x8.add(e, i16x8.relaxed_dot_i8x16_i7x16_s(x, low_of(kind, v)));
      f = i16x8.add(f, i16x8.relaxed_dot_i8x16_i7x16_s(y, high_of(kind, v)));
      v = v128.load(w3 + offset + first);
      g = i16x8.add(g, i16x8.relaxed_dot_i8x16_i7x16_s(x, low_of(kind, v)));
      h = i16x8.add(h, i16x8.relaxed_dot_i8x16_i7x16_s(y, high_of(kind, v)));
    }
    const end = q + Q_GROUP_BYTES;
    add_panel(kind, sums, a, b, w0, end);
    w0 += groupBytes;
    add_panel(kind, sums + 32, c, d, w1, end);
    w1 += groupBytes;
    add_panel(kind, sums + 64, e, f, w2, end);
    w2 += groupBytes;
    add_panel(kind, sums + 96, g, h, w3, end);
    w3 += groupBytes;
  }
}

// @ts-ignore: decorator
@inline
function low_of(kind: i32, bytes: v128): v128 {
  return kind == TABLED ? raised_mxfp4(low_codes(bytes)) : low_codes(bytes);
}

// @ts-ignore: decorator
@inline
function high_of(kind: i32, bytes: v128): v128 {
  return kind == TABLED ? raised_mxfp4(high_codes(bytes)) : high_codes(bytes);
}

/** Adds the i16 sums of one group of a panel, which begins at `w` with its scales. */
// @ts-ignore: decorator
@inline
function add_panel(kind: i32, sums: usize, a: v128, b: v128, w: usize, end: usize): void {
  const scaleA = scales_of(kind, 0, w, 0);
  const scaleB = scales_of(kind, 0, w, 4);
  const zeroA = kind == ZEROED ? load4_f16(w + 16) : scaleA;
  const zeroB = kind == ZEROED ? load4_f16(w + 24) : scaleB;
  add_halves(kind, sums, a, b, scaleA, scaleB, zeroA, zeroB, end);
}
