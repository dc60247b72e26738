/**
 * Helpers shared by both attention paths, few and many queries: the tokens of a block that a row sees, softmax and values of four
 * queries (one lane of the scores each), and the layout of a thread's scratch.
 *
 *   scratch  scores of four queries [block_size + 4][4] f32, a cache line for touch_ahead, a spare partial result whose contents are ignored,
 *            [2][block_size][head_dim] f32: a block's K and V,
 *            [kv_heads][queries, in whole fours][head_dim] f32: queries, packed or scaled
 */
import { touch_ahead } from './touch_ahead.as';
import { exp4, load4_f16_small, madd, multiply, TWO_112 } from './simd.as';

/**
 * Initial running maximum of a softmax, and the score of a token that a query does not see. Finite, because -Infinity - -Infinity
 * would be NaN.
 */
export const LOWEST: f32 = -1e30;

/** Returns the address in scratch of the cache line that holds the state of {@link touch_ahead}. */
// @ts-ignore: decorator
@inline
export function ahead_at(scratch: usize, blockSize: u32): usize {
  return scratch + (((blockSize + 4) as usize) << 4);
}

/** Returns the address in scratch of the spare partial result, into which unused lanes write. */
// @ts-ignore: decorator
@inline
export function spare_at(scratch: usize, blockSize: u32): usize {
  return ahead_at(scratch, blockSize) + 64;
}

/** Returns the address in scratch of a block's unpacked K; the unpacked V follows. */
// @ts-ignore: decorator
@inline
export function unpacked_at(scratch: usize, blockSize: u32, headBytes: usize): usize {
  return spare_at(scratch, blockSize) + headBytes + 64;
}

/** Returns the address in scratch of the packed or scaled queries. */
// @ts-ignore: decorator
@inline
export function queries_at(scratch: usize, blockSize: u32, headBytes: usize): usize {
  return unpacked_at(scratch, blockSize, headBytes) + 2 * (blockSize as usize) * headBytes;
}

/** Returns the bytes of one KV head's queries in scratch, padded to a multiple of four queries. */
// @ts-ignore: decorator
@inline
export function query_bytes(numQueries: u32, headBytes: usize): usize {
  return (((numQueries + 3) & ~3) as usize) * headBytes;
}

/** Returns the first position that a row at `position` sees; a window of 0 means all. */
// @ts-ignore: decorator
@inline
export function first_visible(position: u32, window: u32): u32 {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

/** Returns the start of the tokens that a row at `position` sees in the block beginning at `first`, counted from there. */
// @ts-ignore: decorator
@inline
export function start_in(position: u32, first: u32, window: u32): u32 {
  const from = first_visible(position, window);
  return from > first ? from - first : 0;
}

/** Returns the end of the tokens that a row at `position` sees in the block beginning at `first`; 0 when the row precedes the block. */
// @ts-ignore: decorator
@inline
export function end_in(position: u32, first: u32, numTokens: u32): u32 {
  return position < first ? 0 : min<u32>(numTokens, position - first + 1);
}

/**
 * Replaces scores [tokens][4 queries] of tokens [start, end) by weights e^(score · scale - max), times 2^112 when `isScaled`. Each
 * query sees tokens [starts, ends) of its lane; other tokens get weight 0. Earlier values of the partial results are rescaled to
 * the new max. Weights are added in four sums, by token number modulo 4.
 */
// @ts-ignore: decorator
@inline
export function softmax_of_four(
  scores: usize,
  start: u32,
  end: u32,
  starts: v128,
  ends: v128,
  scale: f32,
  isScaled: u32,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
  headBytes: usize,
): void {
  const all = v128.and(i32x4.eq(starts, i32x4.splat(start)), i32x4.eq(ends, i32x4.splat(end)));
  const isWhole = ((start | end) & 3) == 0 && i32x4.all_true(all);
  const rescale = isWhole
    ? isScaled
      ? softmax_in_lanes(1, 1, scores, start, end, starts, ends, scale, partial0, partial1, partial2, partial3, headBytes)
      : softmax_in_lanes(1, 0, scores, start, end, starts, ends, scale, partial0, partial1, partial2, partial3, headBytes)
    : isScaled
      ? softmax_in_lanes(0, 1, scores, start & ~3, end, starts, ends, scale, partial0, partial1, partial2, partial3, headBytes)
      : softmax_in_lanes(0, 0, scores, start & ~3, end, starts, ends, scale, partial0, partial1, partial2, partial3, headBytes);
  rescale_one(partial0, headBytes, f32x4.extract_lane(rescale, 0));
  rescale_one(partial1, headBytes, f32x4.extract_lane(rescale, 1));
  rescale_one(partial2, headBytes, f32x4.extract_lane(rescale, 2));
  rescale_one(partial3, headBytes, f32x4.extract_lane(rescale, 3));
}

// @ts-ignore: decorator
@inline
function rescale_one(partial: usize, headBytes: usize, factor: f32): void {
  if (factor != 1) multiply(partial, partial, headBytes, factor);
}

/**
 * Computes the weights of {@link softmax_of_four} and updates max and sum of the partial results. Returns the factors by which the
 * partial results must be multiplied. `isWhole` and `isScaled` are compile-time constants.
 */
// @ts-ignore: decorator
@inline
function softmax_in_lanes(
  isWhole: i32,
  isScaled: i32,
  scores: usize,
  start: u32,
  end: u32,
  starts: v128,
  ends: v128,
  scale: f32,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
  headBytes: usize,
): v128 {
  const from = scores + ((start as usize) << 4);
  const to = scores + ((((end + 3) & ~3) as usize) << 4);
  const scale4 = f32x4.splat(scale);
  let highest = f32x4.splat(LOWEST);
  let tokens = i32x4.splat(start);
  for (let at = from; at < to; at += 16) {
    let score = f32x4.mul(v128.load(at), scale4);
    if (!isWhole) {
      score = v128.bitselect(score, f32x4.splat(LOWEST), seen(tokens, starts, ends));
      tokens = i32x4.add(tokens, i32x4.splat(1));
    }
    v128.store(at, score);
    highest = f32x4.pmax(highest, score);
  }
  const before = four(partial0 + headBytes, partial1 + headBytes, partial2 + headBytes, partial3 + headBytes);
  const sumBefore = four(partial0 + headBytes + 4, partial1 + headBytes + 4, partial2 + headBytes + 4, partial3 + headBytes + 4);
  highest = f32x4.pmax(before, highest);
  const rescale = exp4(f32x4.sub(before, highest));
  let a = f32x4.splat(0),
    b = a,
    c = a,
    d = a;
  tokens = i32x4.splat(start);
  for (let at = from; at < to; at += 64) {
    a = f32x4.add(a, weight(isWhole, isScaled, at, highest, tokens, starts, ends));
    tokens = i32x4.add(tokens, i32x4.splat(1));
    b = f32x4.add(b, weight(isWhole, isScaled, at + 16, highest, tokens, starts, ends));
    tokens = i32x4.add(tokens, i32x4.splat(1));
    c = f32x4.add(c, weight(isWhole, isScaled, at + 32, highest, tokens, starts, ends));
    tokens = i32x4.add(tokens, i32x4.splat(1));
    d = f32x4.add(d, weight(isWhole, isScaled, at + 48, highest, tokens, starts, ends));
    tokens = i32x4.add(tokens, i32x4.splat(1));
  }
  const sum = f32x4.add(f32x4.mul(sumBefore, rescale), f32x4.add(f32x4.add(a, b), f32x4.add(c, d)));
  // Each partial result has max and sum side by side: both are stored at once.
  const low = i8x16.shuffle(highest, sum, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const high = i8x16.shuffle(highest, sum, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  v128.store64_lane(partial0 + headBytes, low, 0);
  v128.store64_lane(partial1 + headBytes, low, 1);
  v128.store64_lane(partial2 + headBytes, high, 0);
  v128.store64_lane(partial3 + headBytes, high, 1);
  return rescale;
}

// @ts-ignore: decorator
@inline
function weight(isWhole: i32, isScaled: i32, at: usize, highest: v128, tokens: v128, starts: v128, ends: v128): v128 {
  let weight = exp4(f32x4.sub(v128.load(at), highest));
  if (!isWhole) weight = v128.and(weight, seen(tokens, starts, ends));
  v128.store(at, isScaled ? f32x4.mul(weight, f32x4.splat(TWO_112)) : weight);
  return weight;
}

// @ts-ignore: decorator
@inline
function seen(tokens: v128, starts: v128, ends: v128): v128 {
  return v128.andnot(i32x4.lt_s(tokens, ends), i32x4.lt_s(tokens, starts));
}

// @ts-ignore: decorator
@inline
function four(a: usize, b: usize, c: usize, d: usize): v128 {
  let v = v128.load32_zero(a);
  v = v128.load32_lane(b, v, 1);
  v = v128.load32_lane(c, v, 2);
  return v128.load32_lane(d, v, 3);
}

/** partial results[heads][head_dim] += weights · V, eight outputs at a time; `ahead` 0: nothing is touched on the way. */
// @ts-ignore: decorator
@inline
export function add_values(
  heads: i32,
  isF16: i32,
  w: usize,
  end: usize,
  v: usize,
  tokenBytes: usize,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
  headBytes: usize,
  ahead: usize,
): void {
  for (let d: usize = 0; d < headBytes; d += 32) {
    if (ahead) touch_ahead(ahead);
    const second: usize = d + 16 < headBytes ? 16 : 0;
    const from = v + (isF16 ? d >> 1 : d);
    values_of_8(heads, isF16, w, end, from, tokenBytes, second, partial0 + d, partial1 + d, partial2 + d, partial3 + d);
  }
}

/**
 * partial results[heads][8] += weights [tokens][4 queries] · V in registers, token by token. `second`: byte offset of the last four
 * of the eight outputs; 0 when there are only four. `heads` and `isF16` are compile-time constants; f16 V becomes 2^-112 times its
 * value.
 */
// @ts-ignore: decorator
@inline
function values_of_8(
  heads: i32,
  isF16: i32,
  w: usize,
  end: usize,
  v: usize,
  tokenBytes: usize,
  second: usize,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
): void {
  let a0 = v128.load(partial0),
    a1 = v128.load(partial0 + second),
    b0 = a0,
    b1 = a0,
    c0 = a0,
    c1 = a0,
    d0 = a0,
    d1 = a0;
  if (heads > 1) {
    b0 = v128.load(partial1);
    b1 = v128.load(partial1 + second);
  }
  if (heads > 2) {
    c0 = v128.load(partial2);
    c1 = v128.load(partial2 + second);
  }
  if (heads > 3) {
    d0 = v128.load(partial3);
    d1 = v128.load(partial3 + second);
  }
  const secondV = isF16 ? second >> 1 : second;
  for (; w < end; w += 16) {
    const x = isF16 ? load4_f16_small(v) : v128.load(v);
    const y = isF16 ? load4_f16_small(v + secondV) : v128.load(v + secondV);
    let s = v128.load32_splat(w);
    a0 = madd(s, x, a0);
    a1 = madd(s, y, a1);
    if (heads > 1) {
      s = v128.load32_splat(w, 4);
      b0 = madd(s, x, b0);
      b1 = madd(s, y, b1);
    }
    if (heads > 2) {
      s = v128.load32_splat(w, 8);
      c0 = madd(s, x, c0);
      c1 = madd(s, y, c1);
    }
    if (heads > 3) {
      s = v128.load32_splat(w, 12);
      d0 = madd(s, x, d0);
      d1 = madd(s, y, d1);
    }
    v += tokenBytes;
  }
  // With `second` 0, both stores of a partial result have the same address and value.
  v128.store(partial0 + second, a1);
  v128.store(partial0, a0);
  if (heads > 1) {
    v128.store(partial1 + second, b1);
    v128.store(partial1, b0);
  }
  if (heads > 2) {
    v128.store(partial2 + second, c1);
    v128.store(partial2, c0);
  }
  if (heads > 3) {
    v128.store(partial3 + second, d1);
    v128.store(partial3, d0);
  }
}
