/**
 * Computes weights from logits, as sampling.ts defines them: fixed-point logits with bias, penalties and mask, then powers of two.
 * Four tokens are computed at a time; rows end in whole vectors, and lanes after the last token are read but ignored.
 */

/** The sampled token where nothing can be sampled. */
export const NO_TOKEN: u32 = 0xffffffff;
/** Fixed-point logit of a token that must not be sampled; as a bias, the value that forbids one. */
export const FORBIDDEN: i32 = i32.MIN_VALUE;
/**
 * Tokens per part. The highest token of each part is kept: a token below the k-th highest of these is not among the k highest of the
 * row.
 */
const PART: u32 = 256;
const FIXED_LOGIT_LIMIT: i32 = 1072693248;
const IN_PROMPT: u32 = 0x80000000;
const MINUS_INFINITY: u32 = 0xff800000;

/** Parameters of one sample. A field of 0 means that there is no sample, page or mask. */
// @ts-ignore: decorator
@unmanaged
export class SamplerSlot {
  isSampled: u32;
  slot: u32;
  /** Mantissa of the scale from fixed-point logits to log2 weights; 0: greedy. */
  mantissa: u32;
  shift: u32;
  cutoff: u32;
  minWeight: u32;
  topK: u32;
  topP: u32;
  randomHigh: u32;
  randomLow: u32;
  bias: usize;
  counts: usize;
  allowed: usize;
  hasPenalties: u32;
  aboveMantissa: u32;
  aboveShift: u32;
  belowMantissa: u32;
  belowShift: u32;
  presence: i32;
  frequency: i32;
  maxCount: u32;
}

/** Returns the bits of an f32 as an integer that compares as the f32 does. The function is its own inverse. */
// @ts-ignore: decorator
@inline
function order_of(bits: i32): i32 {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

/**
 * Returns the order (see order_of) of the highest logit, or MAX_VALUE when any logit is NaN. Stores the highest order of each {@link
 * PART} tokens in `parts`.
 */
export function highest_order(logits: usize, vocab: u32, parts: usize): i32 {
  const magnitude = i32x4.splat(0x7fffffff);
  const infinity = i32x4.splat(0x7f800000);
  let highest = i32.MIN_VALUE;
  let nan4 = i32x4.splat(0);
  for (let first: u32 = 0; first < vocab; first += PART) {
    const last = min(first + PART, vocab);
    let highest4 = i32x4.splat(i32.MIN_VALUE);
    for (let id = first; id < last; id += 4) {
      let bits = v128.load(logits + ((id as usize) << 2));
      // Lanes after the last token are no logits: -Infinity replaces them.
      if (id + 4 > vocab) bits = v128.bitselect(bits, i32x4.splat(MINUS_INFINITY as i32), tokens_4(id, vocab));
      nan4 = v128.or(nan4, i32x4.gt_s(v128.and(bits, magnitude), infinity));
      highest4 = i32x4.max_s(highest4, v128.xor(bits, v128.and(i32x4.shr_s(bits, 31), magnitude)));
    }
    const its = highest_of(highest4);
    store<i32>(parts + ((first / PART) << 2), its);
    highest = max(highest, its);
  }
  return v128.any_true(nan4) ? i32.MAX_VALUE : highest;
}

/** Returns the `k`-th highest of the parts: no token below is among the k highest. MIN_VALUE when there are fewer than k parts. */
export function least_of_parts(parts: usize, vocab: u32, k: u32): i32 {
  const count = (vocab + PART - 1) / PART;
  if (k > count) return i32.MIN_VALUE;
  let low: i64 = i32.MIN_VALUE;
  let high: i64 = i32.MAX_VALUE;
  // The highest value that k of them reach.
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    let reach: u32 = 0;
    for (let part: u32 = 0; part < count; part++) reach += u32((load<i32>(parts + (part << 2)) as i64) >= middle);
    if (reach >= k) low = middle;
    else high = middle - 1;
  }
  return low as i32;
}

/** Returns the smallest id whose logit has this order, or NO_TOKEN when the order is that of -Infinity. */
export function first_of_order(logits: usize, vocab: u32, order: i32): u32 {
  const bits = order_of(order);
  if (bits == MINUS_INFINITY) return NO_TOKEN;
  const bits4 = i32x4.splat(bits);
  let id: u32 = 0;
  while (id + 4 <= vocab && !v128.any_true(i32x4.eq(v128.load(logits + ((id as usize) << 2)), bits4))) id += 4;
  while (load<i32>(logits + ((id as usize) << 2)) != bits) id++;
  return id;
}

/** Returns the fixed-point logit of the logit with this order, or FORBIDDEN for -Infinity. */
export function fixed_logit_of_order(order: i32): i32 {
  const bits = order_of(order);
  if (bits == MINUS_INFINITY) return FORBIDDEN;
  const logit = min<f32>(max<f32>(reinterpret<f32>(bits), -1023), 1023);
  return (logit * 1048576) as i32;
}

// @ts-ignore: decorator
@inline
function fixed_logits_of_4(bits: v128): v128 {
  // Rows with a NaN were rejected and the clamp bounds the range, so relaxed and saturating truncation agree.
  const clamped = f32x4.pmin(f32x4.pmax(bits, f32x4.splat(-1023)), f32x4.splat(1023));
  const fixed = f32x4.mul(clamped, f32x4.splat(1048576));
  const fixedLogits = ASC_FEATURE_RELAXED_SIMD ? i32x4.relaxed_trunc_f32x4_s(fixed) : i32x4.trunc_sat_f32x4_s(fixed);
  const is_impossible = i32x4.eq(bits, i32x4.splat(MINUS_INFINITY as i32));
  return v128.bitselect(i32x4.splat(FORBIDDEN), fixedLogits, is_impossible);
}

/** Returns a mask of the four ids from `id` on: all bits set in the lanes of ids below `vocab`. */
// @ts-ignore: decorator
@inline
function tokens_4(id: u32, vocab: u32): v128 {
  return i32x4.lt_u(i32x4(0, 1, 2, 3), i32x4.splat(vocab - id));
}

/** Returns in each lane the lower 32 bits of (a · b + added) >> shift. */
// @ts-ignore: decorator
@inline
function products_4(a: v128, b: v128, added: v128, shift: i32): v128 {
  return i8x16.shuffle(
    i64x2.shr_u(i64x2.add(i64x2.extmul_low_i32x4_u(a, b), added), shift),
    i64x2.shr_u(i64x2.add(i64x2.extmul_high_i32x4_u(a, b), added), shift),
    0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27,
  );
}

// @ts-ignore: decorator
@inline
function highest_of(fixedLogits: v128): i32 {
  return max(
    max(i32x4.extract_lane(fixedLogits, 0), i32x4.extract_lane(fixedLogits, 1)),
    max(i32x4.extract_lane(fixedLogits, 2), i32x4.extract_lane(fixedLogits, 3)),
  );
}

/**
 * Stores fixed-point logits with bias, penalties and mask applied, and the highest of each {@link PART} tokens in `parts`. Returns the
 * highest of all. Lanes after the last token become FORBIDDEN.
 */
export function adjust(logits: usize, vocab: u32, slot: SamplerSlot, fixedLogits: usize, parts: usize): i32 {
  const bias = slot.bias;
  const counts = slot.hasPenalties != 0 ? slot.counts : 0;
  const allowed = slot.allowed;
  const forbidden4 = i32x4.splat(FORBIDDEN);
  const above = factor_2(slot.aboveMantissa, slot.aboveShift);
  const below = factor_2(slot.belowMantissa, slot.belowShift);
  let highest = FORBIDDEN;
  let highest4 = forbidden4;
  for (let id: u32 = 0; id < vocab; id += 4) {
    const at = (id as usize) << 2;
    const fixedLogits4 = fixed_logits_of_4(v128.load(logits + at));
    let is_forbidden = i32x4.eq(fixedLogits4, forbidden4);
    let adjusted = fixedLogits4;
    if (bias != 0) {
      const added = v128.load(bias + at);
      is_forbidden = v128.or(is_forbidden, i32x4.eq(added, forbidden4));
      adjusted = limited_4(i32x4.add(adjusted, added));
    }
    if (counts != 0) {
      const words = v128.load(counts + at);
      if (v128.any_true(words)) {
        adjusted = v128.bitselect(penalised_4(adjusted, words, above, below, slot), adjusted, i32x4.ne(words, i32x4.splat(0)));
      }
    }
    if (allowed != 0) {
      const bits = i32x4.splat(load<u32>(allowed + (((id >> 5) as usize) << 2)) >> (id & 31));
      is_forbidden = v128.or(is_forbidden, i32x4.eq(v128.and(bits, i32x4(1, 2, 4, 8)), i32x4.splat(0)));
    }
    if (id + 4 > vocab) is_forbidden = v128.or(is_forbidden, v128.not(tokens_4(id, vocab)));
    adjusted = v128.bitselect(forbidden4, adjusted, is_forbidden);
    v128.store(fixedLogits + at, adjusted);
    highest4 = i32x4.max_s(highest4, adjusted);
    if (id % PART == PART - 4 || id + 4 >= vocab) {
      const its = highest_of(highest4);
      store<i32>(parts + ((id / PART) << 2), its);
      highest = max(highest, its);
      highest4 = forbidden4;
    }
  }
  return highest;
}

// @ts-ignore: decorator
@inline
function limited_4(fixedLogits: v128): v128 {
  return i32x4.min_s(i32x4.max_s(fixedLogits, i32x4.splat(-FIXED_LOGIT_LIMIT)), i32x4.splat(FIXED_LOGIT_LIMIT));
}

/** Returns the factor mantissa / 2^shift in both f64 lanes. The factor and its product with a fixed-point logit are exact. */
// @ts-ignore: decorator
@inline
function factor_2(mantissa: u32, shift: u32): v128 {
  return f64x2.splat((mantissa as f64) * reinterpret<f64>((1023 - (shift as u64)) << 52));
}

/** Returns the fixed-point logits times `above` where they are positive, else times `below`, rounded towards 0 and within the limit. */
// @ts-ignore: decorator
@inline
function scaled_4(fixedLogits: v128, above: v128, below: v128): v128 {
  const limit = f64x2.splat(FIXED_LOGIT_LIMIT as f64);
  const positive = i32x4.gt_s(fixedLogits, i32x4.splat(0));
  const sizes = i32x4.abs(fixedLogits);
  const upper = i8x16.shuffle(sizes, sizes, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  const low = f64x2.mul(
    f64x2.convert_low_i32x4_s(sizes),
    v128.bitselect(above, below, i64x2.extend_low_i32x4_s(positive)),
  );
  const high = f64x2.mul(
    f64x2.convert_low_i32x4_s(upper),
    v128.bitselect(above, below, i64x2.extend_high_i32x4_s(positive)),
  );
  const scaled = i8x16.shuffle(
    i32x4.trunc_sat_f64x2_s_zero(f64x2.pmin(low, limit)),
    i32x4.trunc_sat_f64x2_s_zero(f64x2.pmin(high, limit)),
    0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23,
  );
  return v128.bitselect(scaled, i32x4.neg(scaled), positive);
}

/**
 * Applies repetition, frequency and presence penalties to tokens that occur in the prompt or the output; `words` are their words of
 * counts.
 */
// @ts-ignore: decorator
@inline
function penalised_4(fixedLogits: v128, words: v128, above: v128, below: v128, slot: SamplerSlot): v128 {
  const none = i32x4.splat(0);
  const repeated = scaled_4(fixedLogits, above, below);
  const count = v128.and(words, i32x4.splat(IN_PROMPT - 1));
  const times = i32x4.min_u(count, i32x4.splat(slot.maxCount));
  const less = limited_4(i32x4.sub(repeated, i32x4.mul(i32x4.splat(slot.frequency), times)));
  const present = v128.and(i32x4.splat(slot.presence), i32x4.ne(count, none));
  return limited_4(i32x4.sub(less, present));
}

/**
 * Returns, of the tokens whose fixed-point logit is `highest`, the one with the highest logit, then the smallest id; NO_TOKEN when
 * there is none.
 */
export function best_of_fixed_logits(logits: usize, fixedLogits: usize, vocab: u32, highest: i32): u32 {
  let winner = NO_TOKEN;
  let order: i32 = 0;
  for (let id: u32 = 0; id < vocab; id++) {
    if (load<i32>(fixedLogits + ((id as usize) << 2)) != highest) continue;
    const its = order_of(load<i32>(logits + ((id as usize) << 2)));
    if (winner == NO_TOKEN || its > order) {
      winner = id;
      order = its;
    }
  }
  return winner;
}

/**
 * Returns the distance below the highest fixed-point logit from which weights are 0. When only tokens from `least` on matter, the
 * distance ends two log2 weights below `least`: beyond, weights are lower than that of `least`, whatever the rounding.
 */
function cutoff_of(slot: SamplerSlot, highest: i32, least: i32): u32 {
  if (least == FORBIDDEN) return slot.cutoff;
  const log2Scale = ((2 << 20) as u64) << (slot.shift as u64);
  const margin = log2Scale / (slot.mantissa as u64) + 2;
  return min((slot.cutoff as u64), ((highest as i64) - (least as i64)) as u64 + margin) as u32;
}

/**
 * Stores the weights of all ids, from `fixedLogits`, or from `logits` when that address is not 0. A weight is 0 where a token must not
 * be sampled, or where it is surely lower than that of fixed-point logit `least`. Returns the sum.
 */
export function weigh(
  logits: usize,
  fixedLogits: usize,
  vocab: u32,
  highest: i32,
  least: i32,
  table: usize,
  slot: SamplerSlot,
  weights: usize,
): u64 {
  let low = i64x2.splat(0);
  let high = i64x2.splat(0);
  const mantissa4 = i32x4.splat(slot.mantissa);
  const shift = slot.shift as i32;
  const highest4 = i32x4.splat(highest);
  const cutoff4 = i32x4.splat(cutoff_of(slot, highest, least));
  const least4 = i32x4.splat(slot.minWeight);
  const forbidden4 = i32x4.splat(FORBIDDEN);
  const rest4 = i32x4.splat(8191);
  const slope4 = i32x4.splat(45304);
  const one4 = i32x4.splat(65536);
  const half2 = i64x2.splat(32768);
  for (let id: u32 = 0; id < vocab; id += 4) {
    const at = (id as usize) << 2;
    // Rows end in whole vectors; lanes after the last id are masked below.
    const fixedLogits4 = logits != 0 ? fixed_logits_of_4(v128.load(logits + at)) : v128.load(fixedLogits + at);
    const below = i32x4.sub(highest4, fixedLogits4);
    const is_left = v128.andnot(i32x4.lt_u(below, cutoff4), i32x4.eq(fixedLogits4, forbidden4));
    if (!v128.any_true(is_left)) {
      v128.store(weights + at, i32x4.splat(0));
      continue;
    }
    const log2Scale = products_4(below, mantissa4, i64x2.splat(0), shift);
    const share = i32x4.sub(one4, i32x4.shr_u(i32x4.mul(v128.and(log2Scale, rest4), slope4), 20));
    // Lanes outside `is_left` may hold any log2 weight; the mask keeps their index within the table.
    const index = v128.and(i32x4.shr_u(log2Scale, 11), i32x4.splat(4095 << 2));
    let entry = i32x4.splat(load<i32>(table + i32x4.extract_lane(index, 0)));
    entry = i32x4.replace_lane(entry, 1, load<i32>(table + i32x4.extract_lane(index, 1)));
    entry = i32x4.replace_lane(entry, 2, load<i32>(table + i32x4.extract_lane(index, 2)));
    entry = i32x4.replace_lane(entry, 3, load<i32>(table + i32x4.extract_lane(index, 3)));
    const weighed = products_4(entry, share, half2, 16);
    let kept = v128.and(weighed, v128.and(is_left, i32x4.ge_u(weighed, least4)));
    if (id + 4 > vocab) kept = v128.and(kept, tokens_4(id, vocab));
    v128.store(weights + at, kept);
    low = i64x2.add(low, i64x2.extend_low_i32x4_u(kept));
    high = i64x2.add(high, i64x2.extend_high_i32x4_u(kept));
  }
  const sums = i64x2.add(low, high);
  return i64x2.extract_lane(sums, 0) + i64x2.extract_lane(sums, 1);
}

