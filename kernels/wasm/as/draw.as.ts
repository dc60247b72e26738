/**
 * Draws a token from each of some rows of logits, as draw.ts defines it.
 *
 *   logits   f32 [samples][stride]
 *   records  [samples] DrawRecord
 *   tokens   u32 [samples] out; NO_TOKEN where nothing can be drawn
 *   slots    u32, the token once more, where later steps find it
 *   table    u32 [4096], weights at every 128th of an octave
 *   scratch  scores i32, weights u32 [vocab + 4] each, bins u64 [2048]
 */

const NO_TOKEN: u32 = 0xffffffff;
const FORBIDDEN: i32 = i32.MIN_VALUE;
const SCORE_LIMIT: i32 = 1072693248;
const IN_PROMPT: u32 = 0x80000000;
const MINUS_INFINITY: u32 = 0xff800000;
const BINS: usize = 2048;
const WALK_BLOCK: u32 = 512;

// @ts-ignore: decorator
@unmanaged
export class DrawParams {
  logits: usize;
  stride: usize;
  vocab: u32;
  records: usize;
  recordBytes: usize;
  tokens: usize;
  slots: usize;
  table: usize;
}

/** Of a sample; 0 is no draw, or no such page. */
// @ts-ignore: decorator
@unmanaged
export class DrawRecord {
  isDrawn: u32;
  slot: u32;
  /** 0 is greedy. */
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

/** Of samples [start, end). */
export function draw(params: DrawParams, start: u32, end: u32, scratch: usize): void {
  for (let sample = start; sample < end; sample++) {
    const at = (sample as usize) << 2;
    const record = changetype<DrawRecord>(params.records + (sample as usize) * params.recordBytes);
    if (record.isDrawn == 0) continue;
    const token = draw_one(params.logits + (sample as usize) * params.stride, params.vocab, params.table, record, scratch);
    store<u32>(params.tokens + at, token);
    store<u32>(params.slots + ((record.slot as usize) << 2), token);
    if (token != NO_TOKEN && record.counts != 0) {
      const word = record.counts + ((token as usize) << 2);
      store<u32>(word, load<u32>(word) + 1);
    }
  }
}

function draw_one(logits: usize, vocab: u32, table: usize, record: DrawRecord, scratch: usize): u32 {
  const scores = scratch;
  const weights = scores + ((((vocab + 7) & ~3) as usize) << 2);
  const bins = weights + ((((vocab + 7) & ~3) as usize) << 2);
  const isAdjusted = record.bias != 0 || record.counts != 0 || record.allowed != 0;
  const best = highest_order(logits, vocab);
  if (best == i32.MAX_VALUE) return NO_TOKEN;
  if (!isAdjusted && record.mantissa == 0) return first_of_order(logits, vocab, best);
  let highest: i32;
  if (isAdjusted) highest = adjust(logits, vocab, record, scores);
  else highest = score_of(order_of(best));
  if (highest == FORBIDDEN) return NO_TOKEN;
  if (record.mantissa == 0) return best_of_scores(logits, scores, vocab, highest);
  let sum = weigh(isAdjusted ? 0 : logits, scores, vocab, highest, table, record, weights);

  // What is kept: weights above `from`, and `ties` that are equal to it.
  let from: u32 = 0;
  let ties: u64 = 0;
  if (record.topK > 0 && (record.topK as u64) < tokens_from(weights, vocab, 1)) {
    from = head(weights, vocab, bins, record.topK, false);
    ties = (record.topK as u64) - tokens_from(weights, vocab, from + 1);
    sum = sum_from(weights, vocab, from + 1) + ties * (from as u64);
  }
  if (record.topP > 0) {
    const limit = (sum >> 32) * (record.topP as u64) + (((sum & 0xffffffff) * (record.topP as u64) + 0xffffffff) >> 32);
    from = head(weights, vocab, bins, limit, true);
    const above = sum_from(weights, vocab, from + 1);
    ties = (limit - above + (from as u64) - 1) / (from as u64);
    sum = above + ties * (from as u64);
  }
  return walk(weights, vocab, from, ties, multiply_high(((record.randomHigh as u64) << 32) | (record.randomLow as u64), sum));
}

/** The first id whose running sum of what is kept is beyond `target`: blocks are added up first, then the ids of one. */
function walk(weights: usize, vocab: u32, from: u32, ties: u64, target: u64): u32 {
  let running: u64 = 0;
  let tiesLeft = ties;
  for (let first: u32 = 0; first < vocab; first += WALK_BLOCK) {
    const last = min(first + WALK_BLOCK, (vocab + 3) & ~3);
    const at = weights + ((first as usize) << 2);
    const equal = from > 0 ? tokens_equal(at, last - first, from) : 0;
    const its = sum_from(at, last - first, from + 1) + min(equal, tiesLeft) * (from as u64);
    if (running + its <= target) {
      running += its;
      tiesLeft -= min(equal, tiesLeft);
      continue;
    }
    for (let id = first; id < last; id++) {
      const weight = load<u32>(weights + ((id as usize) << 2));
      if (weight == 0 || weight < from) continue;
      if (weight == from) {
        if (tiesLeft == 0) continue;
        tiesLeft--;
      }
      running += weight as u64;
      if (running > target) return id;
    }
  }
  return NO_TOKEN;
}

function tokens_equal(weights: usize, count: u32, weight: u32): u64 {
  const weight4 = i32x4.splat(weight);
  let counts = i32x4.splat(0);
  for (let id: u32 = 0; id < count; id += 4) {
    counts = i32x4.sub(counts, i32x4.eq(v128.load(weights + ((id as usize) << 2)), weight4));
  }
  return lanes_of(counts);
}

// @ts-ignore: decorator
@inline
function lanes_of(counts: v128): u64 {
  return (
    (i32x4.extract_lane(counts, 0) as u64) +
    (i32x4.extract_lane(counts, 1) as u64) +
    (i32x4.extract_lane(counts, 2) as u64) +
    (i32x4.extract_lane(counts, 3) as u64)
  );
}

/** Bits of an f32 as an integer that orders as the numbers do; its own inverse. */
// @ts-ignore: decorator
@inline
function order_of(bits: i32): i32 {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

/** Of the highest logit; MAX_VALUE when one is no number. */
function highest_order(logits: usize, vocab: u32): i32 {
  const magnitude = i32x4.splat(0x7fffffff);
  const infinity = i32x4.splat(0x7f800000);
  let highest4 = i32x4.splat(i32.MIN_VALUE);
  let rotten4 = i32x4.splat(0);
  for (let id: u32 = 0; id < vocab; id += 4) {
    let bits = v128.load(logits + ((id as usize) << 2));
    // What lies behind the last one is no logit.
    if (id + 4 > vocab) bits = v128.bitselect(bits, i32x4.splat(MINUS_INFINITY as i32), tokens_4(id, vocab));
    rotten4 = v128.or(rotten4, i32x4.gt_s(v128.and(bits, magnitude), infinity));
    highest4 = i32x4.max_s(highest4, v128.xor(bits, v128.and(i32x4.shr_s(bits, 31), magnitude)));
  }
  return v128.any_true(rotten4) ? i32.MAX_VALUE : highest_of(highest4);
}

function first_of_order(logits: usize, vocab: u32, order: i32): u32 {
  const bits = order_of(order);
  if (bits == MINUS_INFINITY) return NO_TOKEN;
  const bits4 = i32x4.splat(bits);
  let id: u32 = 0;
  while (id + 4 <= vocab && !v128.any_true(i32x4.eq(v128.load(logits + ((id as usize) << 2)), bits4))) id += 4;
  while (load<i32>(logits + ((id as usize) << 2)) != bits) id++;
  return id;
}

// @ts-ignore: decorator
@inline
function score_of(bits: i32): i32 {
  if (bits == MINUS_INFINITY) return FORBIDDEN;
  const logit = min<f32>(max<f32>(reinterpret<f32>(bits), -1023), 1023);
  return (logit * 1048576) as i32;
}

// @ts-ignore: decorator
@inline
function scores_of_4(bits: v128): v128 {
  // None is a NaN, and none is out of range.
  const clamped = f32x4.pmin(f32x4.pmax(bits, f32x4.splat(-1023)), f32x4.splat(1023));
  const fixed = f32x4.mul(clamped, f32x4.splat(1048576));
  const scores = ASC_FEATURE_RELAXED_SIMD ? i32x4.relaxed_trunc_f32x4_s(fixed) : i32x4.trunc_sat_f32x4_s(fixed);
  const is_impossible = i32x4.eq(bits, i32x4.splat(MINUS_INFINITY as i32));
  return v128.bitselect(i32x4.splat(FORBIDDEN), scores, is_impossible);
}

/** All bits of the lanes from `id` on that are tokens. */
// @ts-ignore: decorator
@inline
function tokens_4(id: u32, vocab: u32): v128 {
  return i32x4.lt_u(i32x4(0, 1, 2, 3), i32x4.splat(vocab - id));
}

/** Of each lane the lower 32 bits of (a · b + added) >> shift. */
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
function highest_of(scores: v128): i32 {
  return max(
    max(i32x4.extract_lane(scores, 0), i32x4.extract_lane(scores, 1)),
    max(i32x4.extract_lane(scores, 2), i32x4.extract_lane(scores, 3)),
  );
}

/** Scores with bias, penalties and mask. Returns the highest. What lies behind the last token is read, and left out. */
function adjust(logits: usize, vocab: u32, record: DrawRecord, scores: usize): i32 {
  const bias = record.bias;
  const counts = record.hasPenalties != 0 ? record.counts : 0;
  const allowed = record.allowed;
  const forbidden4 = i32x4.splat(FORBIDDEN);
  let highest4 = forbidden4;
  for (let id: u32 = 0; id < vocab; id += 4) {
    const at = (id as usize) << 2;
    const scores4 = scores_of_4(v128.load(logits + at));
    let is_forbidden = i32x4.eq(scores4, forbidden4);
    let adjusted = scores4;
    if (bias != 0) {
      const added = v128.load(bias + at);
      is_forbidden = v128.or(is_forbidden, i32x4.eq(added, forbidden4));
      adjusted = limited_4(i32x4.add(adjusted, added));
    }
    if (counts != 0) {
      const words = v128.load(counts + at);
      if (v128.any_true(words)) {
        adjusted = v128.bitselect(penalised_4(adjusted, words, record), adjusted, i32x4.ne(words, i32x4.splat(0)));
      }
    }
    if (allowed != 0) {
      const bits = i32x4.splat(load<u32>(allowed + (((id >> 5) as usize) << 2)) >> (id & 31));
      is_forbidden = v128.or(is_forbidden, i32x4.eq(v128.and(bits, i32x4(1, 2, 4, 8)), i32x4.splat(0)));
    }
    if (id + 4 > vocab) is_forbidden = v128.or(is_forbidden, v128.not(tokens_4(id, vocab)));
    adjusted = v128.bitselect(forbidden4, adjusted, is_forbidden);
    v128.store(scores + at, adjusted);
    highest4 = i32x4.max_s(highest4, adjusted);
  }
  return highest_of(highest4);
}

// @ts-ignore: decorator
@inline
function limited_4(scores: v128): v128 {
  return i32x4.min_s(i32x4.max_s(scores, i32x4.splat(-SCORE_LIMIT)), i32x4.splat(SCORE_LIMIT));
}

/** Of what is not negative, at most the limit: beyond `bound` it is that. */
// @ts-ignore: decorator
@inline
function scaled_4(scores: v128, mantissa: u32, shift: u32): v128 {
  // With a larger shift no product comes near.
  const bound: u32 =
    shift > 32 ? SCORE_LIMIT : (min<u64>((((SCORE_LIMIT as u64) + 1) << (shift as u64)) / (mantissa as u64), SCORE_LIMIT as u64) as u32);
  const scale = i32x4.splat(mantissa);
  const within = i32x4.min_u(scores, i32x4.splat(bound + 1));
  const product = products_4(within, scale, i64x2.splat(0), shift as i32);
  return i32x4.min_u(product, i32x4.splat(SCORE_LIMIT));
}

/** Of tokens that are there already; `words` are their counts. */
// @ts-ignore: decorator
@inline
function penalised_4(scores: v128, words: v128, record: DrawRecord): v128 {
  const none = i32x4.splat(0);
  const above = scaled_4(scores, record.aboveMantissa, record.aboveShift);
  const below = i32x4.neg(scaled_4(i32x4.neg(scores), record.belowMantissa, record.belowShift));
  const repeated = v128.bitselect(above, below, i32x4.gt_s(scores, none));
  const count = v128.and(words, i32x4.splat(IN_PROMPT - 1));
  const times = i32x4.min_u(count, i32x4.splat(record.maxCount));
  const less = limited_4(i32x4.sub(repeated, i32x4.mul(i32x4.splat(record.frequency), times)));
  const present = v128.and(i32x4.splat(record.presence), i32x4.ne(count, none));
  return limited_4(i32x4.sub(less, present));
}

function best_of_scores(logits: usize, scores: usize, vocab: u32, highest: i32): u32 {
  let winner = NO_TOKEN;
  let order: i32 = 0;
  for (let id: u32 = 0; id < vocab; id++) {
    if (load<i32>(scores + ((id as usize) << 2)) != highest) continue;
    const its = order_of(load<i32>(logits + ((id as usize) << 2)));
    if (winner == NO_TOKEN || its > order) {
      winner = id;
      order = its;
    }
  }
  return winner;
}

/** Weights of all ids, 0 for those that are not drawn; from scores, or from logits when there are any. Returns their sum. */
function weigh(
  logits: usize,
  scores: usize,
  vocab: u32,
  highest: i32,
  table: usize,
  record: DrawRecord,
  weights: usize,
): u64 {
  let low = i64x2.splat(0);
  let high = i64x2.splat(0);
  const mantissa4 = i32x4.splat(record.mantissa);
  const shift = record.shift as i32;
  const highest4 = i32x4.splat(highest);
  const cutoff4 = i32x4.splat(record.cutoff);
  const least4 = i32x4.splat(record.minWeight);
  const forbidden4 = i32x4.splat(FORBIDDEN);
  const rest4 = i32x4.splat(8191);
  const slope4 = i32x4.splat(45304);
  const one4 = i32x4.splat(65536);
  const half2 = i64x2.splat(32768);
  for (let id: u32 = 0; id < vocab; id += 4) {
    const at = (id as usize) << 2;
    // Rows end in whole vectors; what is behind the last id weighs nothing.
    const scores4 = logits != 0 ? scores_of_4(v128.load(logits + at)) : v128.load(scores + at);
    const below = i32x4.sub(highest4, scores4);
    const is_left = v128.andnot(i32x4.lt_u(below, cutoff4), i32x4.eq(scores4, forbidden4));
    if (!v128.any_true(is_left)) {
      v128.store(weights + at, i32x4.splat(0));
      continue;
    }
    const octaves = products_4(below, mantissa4, i64x2.splat(0), shift);
    const share = i32x4.sub(one4, i32x4.shr_u(i32x4.mul(v128.and(octaves, rest4), slope4), 20));
    // Of those that are not left it may be anything.
    const index = v128.and(i32x4.shr_u(octaves, 11), i32x4.splat(4095 << 2));
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

/** `least` is above 0. */
function sum_from(weights: usize, vocab: u32, least: u32): u64 {
  const least4 = i32x4.splat(least);
  let low = i64x2.splat(0);
  let high = i64x2.splat(0);
  for (let id: u32 = 0; id < vocab; id += 4) {
    const weights4 = v128.load(weights + ((id as usize) << 2));
    const kept = v128.and(weights4, i32x4.ge_u(weights4, least4));
    low = i64x2.add(low, i64x2.extend_low_i32x4_u(kept));
    high = i64x2.add(high, i64x2.extend_high_i32x4_u(kept));
  }
  const sums = i64x2.add(low, high);
  return i64x2.extract_lane(sums, 0) + i64x2.extract_lane(sums, 1);
}

function tokens_from(weights: usize, vocab: u32, least: u32): u64 {
  const least4 = i32x4.splat(least);
  let counts = i32x4.splat(0);
  for (let id: u32 = 0; id < vocab; id += 4) {
    counts = i32x4.sub(counts, i32x4.ge_u(v128.load(weights + ((id as usize) << 2)), least4));
  }
  return lanes_of(counts);
}

/** The weight that the smallest head ends at which has `limit` tokens, or that sum: eleven, eleven and ten bits at a time. */
function head(weights: usize, vocab: u32, bins: usize, limit: u64, isSum: bool): u32 {
  let from: u32 = 0;
  let rest = limit;
  for (let level: u32 = 0; level < 3; level++) {
    const shift: u32 = level == 0 ? 21 : level == 1 ? 10 : 0;
    const above: u32 = level == 0 ? 32 : level == 1 ? 21 : 10;
    const mask = ((1 as u32) << (above - shift)) - 1;
    const prefix4 = i32x4.splat(level == 0 ? 0 : -1 << above);
    const wanted4 = i32x4.splat(from);
    // What has a 0 for its digit is what is left when all others have been taken: nobody looks at it.
    const least4 = i32x4.splat(from + ((1 as u32) << shift));
    memory.fill(bins, 0, BINS << 3);
    for (let first: u32 = 0; first < vocab; first += 4) {
      const weights4 = v128.load(weights + ((first as usize) << 2));
      let left = i32x4.bitmask(
        v128.and(i32x4.ge_u(weights4, least4), i32x4.eq(v128.and(weights4, prefix4), wanted4)),
      );
      while (left != 0) {
        const weight = load<u32>(weights + (((first + ctz(left)) as usize) << 2));
        left &= left - 1;
        const bin = bins + ((((weight >> shift) & mask) as usize) << 3);
        store<u64>(bin, load<u64>(bin) + (isSum ? (weight as u64) : 1));
      }
    }
    let digit = mask;
    for (; digit > 0; digit--) {
      const its = load<u64>(bins + ((digit as usize) << 3));
      if (its >= rest) break;
      rest -= its;
    }
    from |= digit << shift;
  }
  return from;
}

/** The upper 64 bits of a product. */
function multiply_high(a: u64, b: u64): u64 {
  const aLow = a & 0xffffffff;
  const aHigh = a >> 32;
  const bLow = b & 0xffffffff;
  const bHigh = b >> 32;
  const first = aHigh * bLow + ((aLow * bLow) >> 32);
  const second = aLow * bHigh + (first & 0xffffffff);
  return aHigh * bHigh + (first >> 32) + (second >> 32);
}
