/**
 * Finds the weights that top_k and top_p keep. A head is the tokens that come first in the order by descending weight; this file has
 * counts, sums and ends of heads.
 */

/** Bytes of a table of bins: 2,048 sums of u64. */
export const BINS_BYTES: usize = 2048 << 3;
/** Weights from this on are heavy: within ten powers of two of the highest, 2^31. Usually few are. */
export const HEAVY: u32 = (1 as u32) << 21;
/** Weights within 21 powers of two of the highest, 2^31: the second bound, for a top_k beyond the number of {@link HEAVY} ones. */
export const LESS_HEAVY: u32 = (1 as u32) << 10;

/** Writes the weights of at least `least` to `out`, in order of id, and a vector of zeros after them. Returns their number. */
export function heavy_ones(weights: usize, vocab: u32, out: usize, least: u32): u32 {
  const heavy4 = i32x4.splat(least);
  let to = out;
  for (let id: u32 = 0; id < vocab; id += 4) {
    const at = weights + ((id as usize) << 2);
    let left = i32x4.bitmask(i32x4.ge_u(v128.load(at), heavy4));
    for (; left != 0; left &= left - 1) {
      store<u32>(to, load<u32>(at + ((ctz(left) as usize) << 2)));
      to += 4;
    }
  }
  v128.store(to, i32x4.splat(0));
  return ((to - out) >> 2) as u32;
}

/** Returns the sum of the weights that are at least `least`, which is above 0; reads whole vectors. */
export function sum_from(weights: usize, vocab: u32, least: u32): u64 {
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

/** Returns how many weights are at least `least`, which is above 0; reads whole vectors. */
export function tokens_from(weights: usize, vocab: u32, least: u32): u64 {
  const least4 = i32x4.splat(least);
  let counts = i32x4.splat(0);
  for (let id: u32 = 0; id < vocab; id += 4) {
    counts = i32x4.sub(counts, i32x4.ge_u(v128.load(weights + ((id as usize) << 2)), least4));
  }
  return lanes_of(counts);
}

/**
 * Returns the last weight of the smallest head that has `limit` tokens or, with `isSum`, weights that add up to `limit`. Selects by
 * digits of 11, 11 and 10 bits.
 */
export function head(weights: usize, vocab: u32, bins: usize, limit: u64, isSum: bool): u32 {
  let from: u32 = 0;
  let rest = limit;
  for (let level: u32 = 0; level < 3; level++) {
    const shift: u32 = level == 0 ? 21 : level == 1 ? 10 : 0;
    const above: u32 = level == 0 ? 32 : level == 1 ? 21 : 10;
    const mask = ((1 as u32) << (above - shift)) - 1;
    const prefix4 = i32x4.splat(level == 0 ? 0 : -1 << above);
    const wanted4 = i32x4.splat(from);
    // Digit 0 needs no bin: the search below ends there when all higher digits have been subtracted.
    const least4 = i32x4.splat(from + ((1 as u32) << shift));
    memory.fill(bins, 0, BINS_BYTES);
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

/** Returns how many of `count` weights equal `weight`; reads whole vectors. */
export function tokens_equal(weights: usize, count: u32, weight: u32): u64 {
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

