/**
 * Interleaves the integers of eight rows as panels have them: four inputs of the first row, four of the second, and so on, then the next
 * inputs.
 */

/**
 * Source layouts of stored integers: ROWS_* lie row by row as weight_format.ts has them, with scales elsewhere; Q* are GGUF blocks,
 * which begin with their scales.
 */
export const ROWS_INT8: u32 = 0;
/** Rows of int4 as weight_format.ts has them, scales elsewhere. */
export const ROWS_INT4: u32 = 1;
/** GGUF's Q8_0: blocks of a scale f16 and 32 int8. */
export const Q8_0: u32 = 2;
/** GGUF's Q4_0: blocks of a scale f16 and 32 nibbles, each the integer plus 8. */
export const Q4_0: u32 = 3;
/** Rows of uint4 as weight_format.ts has them, scales and zeros elsewhere. */
export const ROWS_UINT4: u32 = 4;
/** GGUF's Q4_1: blocks of a scale f16, a minimum f16 and 32 nibbles. */
export const Q4_1: u32 = 5;
/**
 * GGUF's Q4_K: blocks of 256 nibbles in eight groups, with six-bit scales and minima. As a source of {@link eights}, a group in low
 * nibbles.
 */
export const Q4_K: u32 = 6;
/** Every other group of Q4_K: those in high nibbles. */
export const Q4_K_HIGH: u32 = 7;

/** Stores a group of 32 int8 of eight rows, `apart` bytes from one another, into a panel, each plus 128. */
// @ts-ignore: decorator
@inline
export function store_int8(to: usize, from: usize, apart: usize): void {
  for (let i: usize = 0; i < 32; i += 16) {
    const at = from + i;
    store_quads(
      to + (i << 3),
      raised(at),
      raised(at + apart),
      raised(at + 2 * apart),
      raised(at + 3 * apart),
      raised(at + 4 * apart),
      raised(at + 5 * apart),
      raised(at + 6 * apart),
      raised(at + 7 * apart),
    );
  }
}

/** Returns sixteen int8 plus 128, as bytes without a sign. */
// @ts-ignore: decorator
@inline
function raised(from: usize): v128 {
  return v128.xor(v128.load(from), i8x16.splat(-128));
}

/** Stores a group of 32 four-bit integers of eight rows into a panel; rows are `apart` bytes from one another. */
// @ts-ignore: decorator
@inline
export function store_int4(source: u32, to: usize, from: usize, apart: usize): void {
  store_quads(
    to,
    eights(source, from),
    eights(source, from + apart),
    eights(source, from + 2 * apart),
    eights(source, from + 3 * apart),
    eights(source, from + 4 * apart),
    eights(source, from + 5 * apart),
    eights(source, from + 6 * apart),
    eights(source, from + 7 * apart),
  );
}

/** Returns 32 inputs of a row as four u32: byte i of each has input i of its eight in the low nibble, and input 4 + i in the high one. */
// @ts-ignore: decorator
@inline
export function eights(source: u32, from: usize): v128 {
  if (source >= Q4_K) {
    const shift: i32 = source == Q4_K ? 0 : 4;
    const mask = i8x16.splat(15);
    const first = v128.and(i16x8.shr_u(v128.load(from), shift), mask);
    return eights_of_nibbles(first, v128.and(i16x8.shr_u(v128.load(from, 16), shift), mask));
  }
  const all = v128.load(from);
  // Rows are stored like that; blocks have the first 16 inputs in their low nibbles.
  if (source != Q4_0 && source != Q4_1) return all;
  return eights_of_nibbles(v128.and(all, i8x16.splat(15)), v128.and(i16x8.shr_u(all, 4), i8x16.splat(15)));
}

/** Returns {@link eights} of 32 nibbles, a byte each. */
// @ts-ignore: decorator
@inline
function eights_of_nibbles(first: v128, second: v128): v128 {
  const a = v128.or(first, i64x2.shr_u(first, 28));
  const b = v128.or(second, i64x2.shr_u(second, 28));
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}

/** Returns {@link eights} of 32 inputs whose bytes have two neighbours each, the first in the low nibble. */
// @ts-ignore: decorator
@inline
export function eights_of_pairs(pairs: v128): v128 {
  const even = v128.and(pairs, i8x16.splat(15));
  const odd = v128.and(i16x8.shr_u(pairs, 4), i8x16.splat(15));
  return eights_of_nibbles(
    i8x16.shuffle(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
    i8x16.shuffle(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31),
  );
}

/** Stores a group of 32 integers in [-8, 7], a byte each, of eight rows into an int4 panel. */
// @ts-ignore: decorator
@inline
export function store_int4_of_bytes(to: usize, from: usize): void {
  store_quads(
    to,
    eights_of_bytes(from),
    eights_of_bytes(from + 32),
    eights_of_bytes(from + 64),
    eights_of_bytes(from + 96),
    eights_of_bytes(from + 128),
    eights_of_bytes(from + 160),
    eights_of_bytes(from + 192),
    eights_of_bytes(from + 224),
  );
}

/** Returns {@link eights} of 32 signed bytes within [-8, 7]; each nibble is the integer plus 8. */
// @ts-ignore: decorator
@inline
function eights_of_bytes(from: usize): v128 {
  const eight = i8x16.splat(8);
  return eights_of_nibbles(i8x16.add(v128.load(from), eight), i8x16.add(v128.load(from, 16), eight));
}

/** Stores the transpose of eight rows of four u32: to[k][row] = row[k]. */
// @ts-ignore: decorator
@inline
export function store_quads(to: usize, r0: v128, r1: v128, r2: v128, r3: v128, r4: v128, r5: v128, r6: v128, r7: v128): void {
  store_four(to, r0, r1, r2, r3);
  store_four(to + 16, r4, r5, r6, r7);
}

/** Stores the transpose of four rows of four u32, 32 bytes apart. */
// @ts-ignore: decorator
@inline
function store_four(to: usize, r0: v128, r1: v128, r2: v128, r3: v128): void {
  const a = low32(r0, r1),
    b = high32(r0, r1),
    c = low32(r2, r3),
    d = high32(r2, r3);
  v128.store(to, low64(a, c));
  v128.store(to, high64(a, c), 32);
  v128.store(to, low64(b, d), 64);
  v128.store(to, high64(b, d), 96);
}

/** Stores the transpose of eight rows of eight u16: to[k][row] = row[k]. */
// @ts-ignore: decorator
@inline
export function store8(to: usize, r0: v128, r1: v128, r2: v128, r3: v128, r4: v128, r5: v128, r6: v128, r7: v128): void {
  const a0 = low16(r0, r1),
    a1 = high16(r0, r1),
    b0 = low16(r2, r3),
    b1 = high16(r2, r3),
    c0 = low16(r4, r5),
    c1 = high16(r4, r5),
    d0 = low16(r6, r7),
    d1 = high16(r6, r7);
  store4(to, low32(a0, b0), high32(a0, b0), low32(c0, d0), high32(c0, d0));
  store4(to + 64, low32(a1, b1), high32(a1, b1), low32(c1, d1), high32(c1, d1));
}

// @ts-ignore: decorator
@inline
function store4(to: usize, a: v128, b: v128, c: v128, d: v128): void {
  v128.store(to, low64(a, c));
  v128.store(to, high64(a, c), 16);
  v128.store(to, low64(b, d), 32);
  v128.store(to, high64(b, d), 48);
}

// @ts-ignore: decorator
@inline
function low64(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}

// @ts-ignore: decorator
@inline
function high64(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

// @ts-ignore: decorator
@inline
function low16(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
}

// @ts-ignore: decorator
@inline
function high16(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
}

// @ts-ignore: decorator
@inline
function low32(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
}

// @ts-ignore: decorator
@inline
function high32(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}
