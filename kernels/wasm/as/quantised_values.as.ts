/**
 * Quantises floats of up to eight rows, 32 inputs of each, to integers with a scale. Values are those of weight_format.ts, which is
 * the reference. Divisions and rounding are in f64, as there, where f32 is not exact enough.
 */
import { half_value, half_values, normal_halves } from './halves.as';
import { INT8, UINT4 } from './panels.as';

/** The smallest scale: 2^-14. */
const MIN_NORMAL: f32 = 0.00006103515625;
/** Bits of the largest finite f16, 65504. */
const LARGEST: u16 = 0x7bff;
/** 1.5 · 2^23: an f32 added to this is rounded to the nearest integer, in its lowest bits. */
const MAGIC: f32 = 12582912.0;

/**
 * Room for a group of eight rows: integers i8 [8][32], then at these offsets scales f16 [8], zeros f16 [8] (uint4), inverses 1 / scale
 * f32 [8], lowest integers i8 [8] (int4 and uint4), and floats f32 [8][32].
 */
export const SCALES: usize = 256;
/** Offset in the room of the zeros, f16 [8]; written for uint4 only. */
export const ZEROS: usize = 272;
const INVERSES: usize = 288;
const LOWS: usize = 320;
/** Offset in the room of a group's values widened to floats, f32 [8][32]. */
export const FLOATS: usize = 384;
/** Bytes of the room for a group of eight rows. */
export const ROOM: usize = FLOATS + 1024;

/**
 * Quantises 32 values of each of `count` rows to bytes: round(value / scale), halves up, clamped to the format. A NaN counts as 0;
 * bytes of uint4 are the integer less 8.
 */
export function quantise_groups(format: u32, from: usize, stride: usize, count: u32, room: usize): void {
  put_scales(format, from, stride, 0, count, room);
  put_scales(format, from, stride, 4, count, room);
  for (let row: u32 = 0; row < count; row++, from += stride) {
    const to = room + ((row as usize) << 5);
    const inverse = v128.load32_splat(room + ((row as usize) << 2), INVERSES);
    const lows = format == INT8 ? i8x16.splat(-127) : i8x16.splat(load<i8>(room + (row as usize), LOWS));
    const highs = format == INT8 ? i8x16.splat(127) : i8x16.add(lows, i8x16.splat(15));
    const shift = format == INT8 ? i8x16.splat(0) : i8x16.sub(i8x16.splat(-8), lows);
    if (quick_quantised_values(from, to, inverse, lows, highs, shift)) continue;
    exact_quantised_values(from, to, half_value(load<u16>(room + ((row as usize) << 1), SCALES)), lows, highs, shift);
  }
}

/**
 * Stores scales, inverses, zeros (uint4) and lowest integers of the four rows from `first` on. Rows from `count` on repeat the last
 * row.
 */
// @ts-ignore: decorator
@inline
function put_scales(format: u32, from: usize, stride: usize, first: u32, count: u32, room: usize): void {
  const last = count - 1;
  const a = from + (min<u32>(first, last) as usize) * stride;
  const b = from + (min<u32>(first + 1, last) as usize) * stride;
  const c = from + (min<u32>(first + 2, last) as usize) * stride;
  const d = from + (min<u32>(first + 3, last) as usize) * stride;
  const highest = maxima(highest_in(a), highest_in(b), highest_in(c), highest_in(d));
  // Magnitudes of the lowest values; 0 in rows without a negative value.
  const lowest = maxima(lowest_in(a), lowest_in(b), lowest_in(c), lowest_in(d));
  let exact: v128;
  if (format == INT8) exact = quotients(f32x4.pmax(highest, lowest), 127);
  else if (format == UINT4) exact = spread(highest, lowest);
  else {
    let extremes = v128.bitselect(highest, f32x4.neg(lowest), f32x4.gt(highest, lowest));
    const isEven = v128.and(f32x4.eq(highest, lowest), f32x4.gt(highest, f32x4.splat(0)));
    if (v128.any_true(isEven)) extremes = v128.bitselect(firsts(a, b, c, d, highest), extremes, isEven);
    exact = quotients(extremes, -8);
  }
  const least = v128.or(i32x4.splat(0x0400), v128.and(i32x4.shr_u(exact, 16), i32x4.splat(0x8000)));
  const isUint4 = f32x4.lt(f32x4.abs(exact), f32x4.splat(MIN_NORMAL));
  const halves = v128.bitselect(least, normal_halves(exact), isUint4);
  const scales = half_values(halves);
  const to = room + ((first as usize) << 1);
  v128.store64_lane(to, i16x8.narrow_i32x4_u(halves, halves), 0, SCALES);
  // A scale of the largest f16 may have saturated, so quotients may exceed the format: a NaN inverse forces the exact path.
  const isLargest = i32x4.eq(v128.and(halves, i32x4.splat(0x7fff)), i32x4.splat(LARGEST));
  v128.store(to + ((first as usize) << 1), v128.or(f32x4.div(f32x4.splat(1), scales), isLargest), INVERSES);
  let lows = i32x4.splat(-8);
  if (format == UINT4) {
    const zeros = i32x4.min_s(i32x4.splat(15), rounded(lowest, scales));
    v128.store64_lane(to, narrow_halves(f32x4.convert_i32x4_s(zeros)), 0, ZEROS);
    lows = i32x4.neg(zeros);
  }
  const words = i16x8.narrow_i32x4_s(lows, lows);
  v128.store32_lane(room + (first as usize), i8x16.narrow_i16x8_s(words, words), 0, LOWS);
}

// @ts-ignore: decorator
@inline
function narrow_halves(values: v128): v128 {
  const halves = normal_halves(values);
  return i16x8.narrow_i32x4_u(halves, halves);
}

/** Returns the highest of the 32 values in four lanes, ignoring NaN and negative values; at least 0. */
// @ts-ignore: decorator
@inline
function highest_in(from: usize): v128 {
  const none = f32x4.splat(0);
  const a = f32x4.pmax(f32x4.pmax(f32x4.pmax(f32x4.pmax(none, v128.load(from)), v128.load(from, 16)), v128.load(from, 32)), v128.load(from, 48));
  const b = f32x4.pmax(f32x4.pmax(f32x4.pmax(f32x4.pmax(none, v128.load(from, 64)), v128.load(from, 80)), v128.load(from, 96)), v128.load(from, 112));
  return f32x4.pmax(a, b);
}

/** Returns the magnitude of the lowest of the 32 values in four lanes, ignoring NaN and positive values; at least 0. */
// @ts-ignore: decorator
@inline
function lowest_in(from: usize): v128 {
  const none = f32x4.splat(0);
  const a = f32x4.pmin(f32x4.pmin(f32x4.pmin(f32x4.pmin(none, v128.load(from)), v128.load(from, 16)), v128.load(from, 32)), v128.load(from, 48));
  const b = f32x4.pmin(f32x4.pmin(f32x4.pmin(f32x4.pmin(none, v128.load(from, 64)), v128.load(from, 80)), v128.load(from, 96)), v128.load(from, 112));
  return f32x4.sub(none, f32x4.pmin(a, b));
}

/** Returns the greatest lane of each of the four vectors. */
// @ts-ignore: decorator
@inline
function maxima(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.pmax(
    i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
    i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31),
  );
  const cd = f32x4.pmax(
    i8x16.shuffle(c, d, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
    i8x16.shuffle(c, d, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31),
  );
  return f32x4.pmax(
    i8x16.shuffle(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
    i8x16.shuffle(ab, cd, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31),
  );
}

// @ts-ignore: decorator
@inline
function upper(v: v128): v128 {
  return i8x16.shuffle(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
}

/** The lower halves of both. */
// @ts-ignore: decorator
@inline
function joined(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}

// @ts-ignore: decorator
@inline
function quotients(values: v128, divisor: f64): v128 {
  const by = f64x2.splat(divisor);
  const a = f64x2.div(f64x2.promote_low_f32x4(values), by);
  const b = f64x2.div(f64x2.promote_low_f32x4(upper(values)), by);
  return joined(f32x4.demote_f64x2_zero(a), f32x4.demote_f64x2_zero(b));
}

/** Returns the exact uint4 scale of each row, (highest + lowest) / 15; `lowest` is a magnitude, so the range includes 0. */
// @ts-ignore: decorator
@inline
function spread(highest: v128, lowest: v128): v128 {
  const by = f64x2.splat(15);
  const a = f64x2.add(f64x2.promote_low_f32x4(highest), f64x2.promote_low_f32x4(lowest));
  const b = f64x2.add(f64x2.promote_low_f32x4(upper(highest)), f64x2.promote_low_f32x4(upper(lowest)));
  return joined(f32x4.demote_f64x2_zero(f64x2.div(a, by)), f32x4.demote_f64x2_zero(f64x2.div(b, by)));
}

/** Returns floor(value / scale + 0.5) of four values as i32; a NaN becomes 0. */
// @ts-ignore: decorator
@inline
function rounded(values: v128, scales: v128): v128 {
  const half = f64x2.splat(0.5);
  const a = f64x2.div(f64x2.promote_low_f32x4(values), f64x2.promote_low_f32x4(scales));
  const b = f64x2.div(f64x2.promote_low_f32x4(upper(values)), f64x2.promote_low_f32x4(upper(scales)));
  return joined(
    i32x4.trunc_sat_f64x2_s_zero(f64x2.floor(f64x2.add(a, half))),
    i32x4.trunc_sat_f64x2_s_zero(f64x2.floor(f64x2.add(b, half))),
  );
}

/** Returns, for each of four rows, the first value whose magnitude is that of its lane of `extremes`. */
function firsts(a: usize, b: usize, c: usize, d: usize, extremes: v128): v128 {
  let out = f32x4.splat(first_of(a, f32x4.extract_lane(extremes, 0)));
  out = f32x4.replace_lane(out, 1, first_of(b, f32x4.extract_lane(extremes, 1)));
  out = f32x4.replace_lane(out, 2, first_of(c, f32x4.extract_lane(extremes, 2)));
  return f32x4.replace_lane(out, 3, first_of(d, f32x4.extract_lane(extremes, 3)));
}

function first_of(from: usize, magnitude: f32): f32 {
  for (const end = from + 128; from < end; from += 4) if (abs<f32>(load<f32>(from)) == magnitude) return load<f32>(from);
  return 0;
}

/**
 * Quantises 32 values in f32, where a quotient within the format is off by less than 3e-5. Returns false when one is so near a half
 * that {@link exact_quantised_values} has to decide.
 */
// @ts-ignore: decorator
@inline
function quick_quantised_values(from: usize, to: usize, inverse: v128, lows: v128, highs: v128, shift: v128): bool {
  let isKnown = i32x4.splat(-1);
  const magic = f32x4.splat(MAGIC);
  for (let i: usize = 0; i < 32; i += 16) {
    const at = from + (i << 2);
    const a = f32x4.mul(v128.load(at), inverse);
    const b = f32x4.mul(v128.load(at, 16), inverse);
    const c = f32x4.mul(v128.load(at, 32), inverse);
    const d = f32x4.mul(v128.load(at, 48), inverse);
    // The sum has the nearest integer in its lowest bits.
    const a1 = f32x4.add(a, magic);
    const b1 = f32x4.add(b, magic);
    const c1 = f32x4.add(c, magic);
    const d1 = f32x4.add(d, magic);
    isKnown = v128.and(isKnown, v128.and(v128.and(is_clear(a, a1), is_clear(b, b1)), v128.and(is_clear(c, c1), is_clear(d, d1))));
    const ab = i16x8.narrow_i32x4_s(i32x4.sub(a1, magic), i32x4.sub(b1, magic));
    const cd = i16x8.narrow_i32x4_s(i32x4.sub(c1, magic), i32x4.sub(d1, magic));
    const bytes = i8x16.min_s(i8x16.max_s(i8x16.narrow_i16x8_s(ab, cd), lows), highs);
    v128.store(to + i, i8x16.add(bytes, shift));
  }
  return i32x4.all_true(isKnown);
}

// @ts-ignore: decorator
@inline
function is_clear(value: v128, sum: v128): v128 {
  const nearest = f32x4.sub(sum, f32x4.splat(MAGIC));
  return f32x4.lt(f32x4.abs(f32x4.sub(value, nearest)), f32x4.splat(0.4999));
}

function exact_quantised_values(from: usize, to: usize, exact: f32, lows: v128, highs: v128, shift: v128): void {
  const scale = f32x4.splat(exact);
  for (let i: usize = 0; i < 32; i += 16) {
    const at = from + (i << 2);
    const ab = i16x8.narrow_i32x4_s(rounded(v128.load(at), scale), rounded(v128.load(at, 16), scale));
    const cd = i16x8.narrow_i32x4_s(rounded(v128.load(at, 32), scale), rounded(v128.load(at, 48), scale));
    const bytes = i8x16.min_s(i8x16.max_s(i8x16.narrow_i16x8_s(ab, cd), lows), highs);
    v128.store(to + i, i8x16.add(bytes, shift));
  }
}
