/** Loops that measure the machine's peak rates with 128-bit vectors, and a probe for its numerics class (fused multiply-add or not). */
import { madd } from './simd.as';

/**
 * Returns 1 when a multiply-add rounds once, else 0. `at`: room for 32 bytes; operands pass through memory, so that no compiler
 * computes the result.
 */
export function is_fused(at: usize): u32 {
  v128.store(at, f32x4.splat(1.000244140625));
  v128.store(at, f32x4.splat(-1.00048828125), 16);
  const a = v128.load(at);
  return f32x4.extract_lane(madd(a, a, v128.load(at, 16)), 0) != 0 ? 1 : 0;
}

/** Does 96 floating-point operations per iteration. `at`: 32 bytes read, 16 written. */
export function multiply_add_loop(iterations: u32, at: usize): void {
  loop(F32, iterations, at);
}

/** Multiplies pairs of i16 and adds them to i32: 192 integer operations per iteration. */
export function multiply_add_loop_int(iterations: u32, at: usize): void {
  loop(INT16, iterations, at);
}

/**
 * Multiplies i8 by seven bits and adds to i16, the relaxed instruction of int4 products: 384 operations per iteration. With plain
 * SIMD, runs twice as many iterations of {@link multiply_add_loop_int} instead.
 */
export function multiply_add_loop_int4(iterations: u32, at: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) loop(INT8, iterations, at);
  else loop(INT16, 2 * iterations, at);
}

const F32: i32 = 0;
const INT16: i32 = 1;
const INT8: i32 = 2;

/** Twelve independent chains; `kind` is a constant, so that each is its own code. */
// @ts-ignore: decorator
@inline
function loop(kind: i32, iterations: u32, at: usize): void {
  const x = v128.load(at);
  const y = kind == INT8 ? v128.and(x, i8x16.splat(15)) : v128.load(at, 16);
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
  for (let iteration: u32 = 0; iteration < iterations; iteration++) {
    a = link(kind, x, y, a);
    b = link(kind, x, y, b);
    c = link(kind, x, y, c);
    d = link(kind, x, y, d);
    e = link(kind, x, y, e);
    f = link(kind, x, y, f);
    g = link(kind, x, y, g);
    h = link(kind, x, y, h);
    i = link(kind, x, y, i);
    j = link(kind, x, y, j);
    k = link(kind, x, y, k);
    l = link(kind, x, y, l);
  }
  // All chains enter the result, so that the compiler removes none.
  a = v128.xor(v128.xor(v128.xor(a, b), v128.xor(c, d)), v128.xor(v128.xor(e, f), v128.xor(g, h)));
  v128.store(at, v128.xor(a, v128.xor(v128.xor(i, j), v128.xor(k, l))));
}

// @ts-ignore: decorator
@inline
function link(kind: i32, x: v128, y: v128, chain: v128): v128 {
  if (kind == F32) return madd(x, chain, y);
  if (kind == INT16) return i32x4.add(i32x4.dot_i16x8_s(x, chain), chain);
  if (ASC_FEATURE_RELAXED_SIMD) return i16x8.add(i16x8.relaxed_dot_i8x16_i7x16_s(chain, y), chain);
  return chain;
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
