/**
 * Interleaves the integers of eight rows as panels have them: two inputs of the first row, two of the second, and so on, then the next
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
 * GGUF's Q4_K: blocks of 256 nibbles in eight groups, with six-bit scales and minima. As a source of {@link fours}, a group in low
 * nibbles.
 */
export const Q4_K: u32 = 6;
/** Every other group of Q4_K: those in high nibbles. */
export const Q4_K_HIGH: u32 = 7;

/** Stores a group of 32 int8 of eight rows, `apart` bytes from one another, into a panel: two inputs of a row side by side. */
// @ts-ignore: decorator
@inline
export function store_int8(to: usize, from: usize, apart: usize): void {
  for (let i: usize = 0; i < 32; i += 16) {
    const at = from + i;
    store8(
      to + (i << 3),
      v128.load(at),
      v128.load(at + apart),
      v128.load(at + 2 * apart),
      v128.load(at + 3 * apart),
      v128.load(at + 4 * apart),
      v128.load(at + 5 * apart),
      v128.load(at + 6 * apart),
      v128.load(at + 7 * apart),
    );
  }
}

/** Stores a group of 32 four-bit integers of eight rows into a panel; rows are `apart` bytes from one another. */
// @ts-ignore: decorator
@inline
export function store_int4(source: u32, to: usize, from: usize, apart: usize): void {
  store8(
    to,
    fours(source, from),
    fours(source, from + apart),
    fours(source, from + 2 * apart),
    fours(source, from + 3 * apart),
    fours(source, from + 4 * apart),
    fours(source, from + 5 * apart),
    fours(source, from + 6 * apart),
    fours(source, from + 7 * apart),
  );
}

/** Returns 32 inputs of a row as eight u16: inputs a, b, c, d are a | b << 8 | c << 4 | d << 12. */
// @ts-ignore: decorator
@inline
export function fours(source: u32, from: usize): v128 {
  if (source >= Q4_K) {
    const shift: i32 = source == Q4_K ? 0 : 4;
    const mask = i8x16.splat(15);
    const first = v128.and(i16x8.shr_u(v128.load(from), shift), mask);
    return both(in_order(first), in_order(v128.and(i16x8.shr_u(v128.load(from, 16), shift), mask)));
  }
  const all = v128.load(from);
  const low = in_order(v128.and(all, i8x16.splat(15)));
  const high = in_order(v128.and(i16x8.shr_u(all, 4), i8x16.splat(15)));
  // Blocks have the first 16 inputs in their low nibbles, rows every other four.
  if (source == Q4_0 || source == Q4_1) return both(low, high);
  return i8x16.shuffle(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}

/** Swaps the middle nibbles of each u16: a | b << 4 | c << 8 | d << 12 becomes a | b << 8 | c << 4 | d << 12. */
// @ts-ignore: decorator
@inline
export function pairs_in_order(fours: v128): v128 {
  const outer = v128.and(fours, i16x8.splat(0xf00f as i16));
  const up = i16x8.shl(v128.and(fours, i16x8.splat(0x00f0)), 4);
  const down = i16x8.shr_u(v128.and(fours, i16x8.splat(0x0f00)), 4);
  return v128.or(outer, v128.or(up, down));
}

/** Packs each four bytes a, b, c, d below 16 into the lower u16 of their i32: a | b << 8 | c << 4 | d << 12. */
// @ts-ignore: decorator
@inline
function in_order(bytes: v128): v128 {
  return v128.or(bytes, i32x4.shr_u(bytes, 12));
}

/** Returns the lower u16 of each i32 of `a`, then of `b`. */
// @ts-ignore: decorator
@inline
function both(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
}

/** Stores a group of 32 integers in [-8, 7], a byte each, of eight rows into an int4 panel. */
// @ts-ignore: decorator
@inline
export function store_int4_of_bytes(to: usize, from: usize): void {
  store8(
    to,
    fours_of_bytes(from),
    fours_of_bytes(from + 32),
    fours_of_bytes(from + 64),
    fours_of_bytes(from + 96),
    fours_of_bytes(from + 128),
    fours_of_bytes(from + 160),
    fours_of_bytes(from + 192),
    fours_of_bytes(from + 224),
  );
}

/** Returns 32 signed bytes within [-8, 7] as eight u16 of nibbles, like {@link fours}; each nibble is the integer plus 8. */
// @ts-ignore: decorator
@inline
export function fours_of_bytes(from: usize): v128 {
  const eight = i8x16.splat(8);
  return both(in_order(i8x16.add(v128.load(from), eight)), in_order(i8x16.add(v128.load(from, 16), eight)));
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
  v128.store(to, i8x16.shuffle(a, c, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
  v128.store(to, i8x16.shuffle(a, c, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31), 16);
  v128.store(to, i8x16.shuffle(b, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23), 32);
  v128.store(to, i8x16.shuffle(b, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31), 48);
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
