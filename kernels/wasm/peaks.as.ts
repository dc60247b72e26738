/** What the machine can do at most with 128-bit vectors, and which numerics class its multiply-add makes. */
import { madd } from './simd.as';

/** 1 when a multiply-add rounds once. `at`: room for 32 bytes; through memory, so that no compiler decides it. */
export function is_fused(at: usize): u32 {
  v128.store(at, f32x4.splat(1.000244140625));
  v128.store(at, f32x4.splat(-1.00048828125), 16);
  const a = v128.load(at);
  return f32x4.extract_lane(madd(a, a, v128.load(at, 16)), 0) != 0 ? 1 : 0;
}

/** Twelve independent chains of f32 multiply-adds: 96 floating-point operations a turn. `at`: 32 bytes read, 16 written. */
export function multiply_add_loop(turns: u32, at: usize): void {
  const x = v128.load(at),
    y = v128.load(at, 16);
  let a = x,
    b = x,
    c = x,
    d = x,
    e = x,
    f = x,
    g = x,
    h = x,
    i = x,
    j = x,
    k = x,
    l = x;
  for (let turn: u32 = 0; turn < turns; turn++) {
    a = madd(x, a, y);
    b = madd(x, b, y);
    c = madd(x, c, y);
    d = madd(x, d, y);
    e = madd(x, e, y);
    f = madd(x, f, y);
    g = madd(x, g, y);
    h = madd(x, h, y);
    i = madd(x, i, y);
    j = madd(x, j, y);
    k = madd(x, k, y);
    l = madd(x, l, y);
  }
  a = f32x4.add(f32x4.add(f32x4.add(a, b), f32x4.add(c, d)), f32x4.add(f32x4.add(e, f), f32x4.add(g, h)));
  v128.store(at, f32x4.add(a, f32x4.add(f32x4.add(i, j), f32x4.add(k, l))));
}

/** Twelve independent chains of i16 pair products added to i32: 192 integer operations a turn. */
export function multiply_add_loop_int(turns: u32, at: usize): void {
  const x = v128.load(at);
  let a = x,
    b = x,
    c = x,
    d = x,
    e = x,
    f = x,
    g = x,
    h = x,
    i = x,
    j = x,
    k = x,
    l = x;
  for (let turn: u32 = 0; turn < turns; turn++) {
    a = i32x4.add(i32x4.dot_i16x8_s(x, a), a);
    b = i32x4.add(i32x4.dot_i16x8_s(x, b), b);
    c = i32x4.add(i32x4.dot_i16x8_s(x, c), c);
    d = i32x4.add(i32x4.dot_i16x8_s(x, d), d);
    e = i32x4.add(i32x4.dot_i16x8_s(x, e), e);
    f = i32x4.add(i32x4.dot_i16x8_s(x, f), f);
    g = i32x4.add(i32x4.dot_i16x8_s(x, g), g);
    h = i32x4.add(i32x4.dot_i16x8_s(x, h), h);
    i = i32x4.add(i32x4.dot_i16x8_s(x, i), i);
    j = i32x4.add(i32x4.dot_i16x8_s(x, j), j);
    k = i32x4.add(i32x4.dot_i16x8_s(x, k), k);
    l = i32x4.add(i32x4.dot_i16x8_s(x, l), l);
  }
  a = i32x4.add(i32x4.add(i32x4.add(a, b), i32x4.add(c, d)), i32x4.add(i32x4.add(e, f), i32x4.add(g, h)));
  v128.store(at, i32x4.add(a, i32x4.add(i32x4.add(i, j), i32x4.add(k, l))));
}

/**
 * As above with the relaxed product of i8 and seven bits added to i16, which int4 products use: 384 operations a turn. Without relaxed
 * SIMD it is the same as above.
 */
export function multiply_add_loop_int4(turns: u32, at: usize): void {
  if (!ASC_FEATURE_RELAXED_SIMD) {
    multiply_add_loop_int(2 * turns, at);
    return;
  }
  const x = v128.load(at);
  const y = v128.and(x, i8x16.splat(15));
  let a = x,
    b = x,
    c = x,
    d = x,
    e = x,
    f = x,
    g = x,
    h = x,
    i = x,
    j = x,
    k = x,
    l = x;
  for (let turn: u32 = 0; turn < turns; turn++) {
    a = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(a, y), a);
    b = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(b, y), b);
    c = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(c, y), c);
    d = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(d, y), d);
    e = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(e, y), e);
    f = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(f, y), f);
    g = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(g, y), g);
    h = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(h, y), h);
    i = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(i, y), i);
    j = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(j, y), j);
    k = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(k, y), k);
    l = i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(l, y), l);
  }
  a = v128.xor(v128.xor(v128.xor(a, b), v128.xor(c, d)), v128.xor(v128.xor(e, f), v128.xor(g, h)));
  v128.store(at, v128.xor(a, v128.xor(v128.xor(i, j), v128.xor(k, l))));
}

/** Reads [from, to), whole 128 bytes, as vectors; returns what they xor to, so that no read is left out. */
export function read_loop(from: usize, to: usize): i32 {
  let a = i32x4.splat(0),
    b = a,
    c = a,
    d = a;
  for (; from < to; from += 128) {
    a = v128.xor(a, v128.xor(v128.load(from), v128.load(from, 64)));
    b = v128.xor(b, v128.xor(v128.load(from, 16), v128.load(from, 80)));
    c = v128.xor(c, v128.xor(v128.load(from, 32), v128.load(from, 96)));
    d = v128.xor(d, v128.xor(v128.load(from, 48), v128.load(from, 112)));
  }
  return i32x4.extract_lane(v128.xor(v128.xor(a, b), v128.xor(c, d)), 0);
}
