/**
 * Samples a token from each of some rows of logits, as sampling.ts defines it.
 *
 *   logits        f32 [samples][stride]
 *   samplerSlots  [samples] SamplerSlot
 *   tokens        u32 [samples] out; NO_TOKEN where nothing can be sampled
 *   slots         u32 [slots] out: the token again, where later steps read it
 *   table         u32 [4096]: the weights 2^(31 - i / 128), 128 entries per power of two
 *   scratch       fixed-point logits i32, weights u32 [vocab + 4] each, bins u64 [2048], heavy weights u32 [vocab + 4]
 */

import { BINS_BYTES, head, heavy_ones, HEAVY, LESS_HEAVY, sum_from, tokens_equal, tokens_from } from './sample_cuts.as';
import { adjust, best_of_fixed_logits, SamplerSlot, first_of_order, FORBIDDEN, highest_order, least_of_parts, NO_TOKEN, fixed_logit_of_order, weigh } from './sample_logits.as';

const WALK_BLOCK: u32 = 512;
/** log2 of the average weight from which a row counts as flat: within seven powers of two of the highest weight, 2^31. */
const FLAT_SHIFT: u64 = 24;

/** Parameters of {@link sample}; the regions are drawn above, `stride` and `samplerSlotBytes` are bytes. */
// @ts-ignore: decorator
@unmanaged
export class SampleParams {
  logits: usize;
  stride: usize;
  vocab: u32;
  samplerSlots: usize;
  samplerSlotBytes: usize;
  tokens: usize;
  slots: usize;
  table: usize;
}

/**
 * Samples rows [start, end): writes each token to `tokens` and to its slot, and increments the token's count when the sample keeps
 * counts.
 */
export function sample(params: SampleParams, start: u32, end: u32, scratch: usize): void {
  for (let sample = start; sample < end; sample++) {
    const at = (sample as usize) << 2;
    const slot = changetype<SamplerSlot>(params.samplerSlots + (sample as usize) * params.samplerSlotBytes);
    if (slot.isSampled == 0) continue;
    const token = sample_one(params.logits + (sample as usize) * params.stride, params.vocab, params.table, slot, scratch);
    store<u32>(params.tokens + at, token);
    store<u32>(params.slots + ((slot.slot as usize) << 2), token);
    if (token != NO_TOKEN && slot.counts != 0) {
      const word = slot.counts + ((token as usize) << 2);
      store<u32>(word, load<u32>(word) + 1);
    }
  }
}

function sample_one(logits: usize, vocab: u32, table: usize, slot: SamplerSlot, scratch: usize): u32 {
  const fixedLogits = scratch;
  const weights = fixedLogits + ((((vocab + 7) & ~3) as usize) << 2);
  const bins = weights + ((((vocab + 7) & ~3) as usize) << 2);
  const isAdjusted = slot.bias != 0 || slot.counts != 0 || slot.allowed != 0;
  const heavies = bins + BINS_BYTES;
  const best = highest_order(logits, vocab, heavies);
  if (best == i32.MAX_VALUE) return NO_TOKEN;
  if (!isAdjusted && slot.mantissa == 0) return first_of_order(logits, vocab, best);
  let highest: i32;
  if (isAdjusted) highest = adjust(logits, vocab, slot, fixedLogits, heavies);
  else highest = fixed_logit_of_order(best);
  if (highest == FORBIDDEN) return NO_TOKEN;
  if (slot.mantissa == 0) return best_of_fixed_logits(logits, fixedLogits, vocab, highest);
  // Tokens that are not among the k highest need no weight.
  let last = slot.topK > 0 ? least_of_parts(heavies, vocab, slot.topK) : FORBIDDEN;
  if (!isAdjusted && last != FORBIDDEN) last = fixed_logit_of_order(last);
  let sum = weigh(isAdjusted ? 0 : logits, fixedLogits, vocab, highest, last, table, slot, weights);

  // top_k and top_p keep the weights above `from`, and the first `ties` weights equal to it.
  let from: u32 = 0;
  let ties: u64 = 0;
  let least = HEAVY;
  let numHeavy: u32 = 0;
  if (slot.topK == 0 && sum >> FLAT_SHIFT >= (vocab as u64)) {
    // The row is flat: selecting its heavy weights would leave most of them.
    least = u32.MAX_VALUE;
  } else if (slot.topK > 0 || slot.topP > 0) {
    numHeavy = heavy_ones(weights, vocab, heavies, least);
    if (slot.topK > numHeavy) {
      least = LESS_HEAVY;
      numHeavy = heavy_ones(weights, vocab, heavies, least);
    }
  }
  if (slot.topK > 0 && (slot.topK < numHeavy || (slot.topK as u64) < tokens_from(weights, vocab, 1))) {
    from = head_of(weights, vocab, heavies, numHeavy, least, bins, slot.topK, false);
    const isHeavy = from >= least;
    const looked = isHeavy ? heavies : weights;
    const count = isHeavy ? numHeavy : vocab;
    ties = (slot.topK as u64) - tokens_from(looked, count, from + 1);
    sum = sum_from(looked, count, from + 1) + ties * (from as u64);
  }
  if (slot.topP > 0) {
    const limit = (sum >> 32) * (slot.topP as u64) + (((sum & 0xffffffff) * (slot.topP as u64) + 0xffffffff) >> 32);
    from = head_of(weights, vocab, heavies, numHeavy, least, bins, limit, true);
    const above = from >= least ? sum_from(heavies, numHeavy, from + 1) : sum_from(weights, vocab, from + 1);
    ties = (limit - above + (from as u64) - 1) / (from as u64);
    sum = above + ties * (from as u64);
  }
  return walk(weights, vocab, from, ties, multiply_high(((slot.randomHigh as u64) << 32) | (slot.randomLow as u64), sum));
}

/** Returns the weight at which a head ends. Most heads end among the few heavy weights, which are searched first. */
function head_of(
  weights: usize,
  vocab: u32,
  heavies: usize,
  numHeavy: u32,
  least: u32,
  bins: usize,
  limit: u64,
  isSum: bool,
): u32 {
  const from = numHeavy > 0 ? head(heavies, numHeavy, bins, limit, isSum) : 0;
  return from >= least ? from : head(weights, vocab, bins, limit, isSum);
}

/**
 * Returns the first id at which the running sum of the kept weights exceeds `target`, or NO_TOKEN. Sums of WALK_BLOCK ids locate the
 * block, then its ids are added one by one.
 */
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

/** Returns the upper 64 bits of the 128-bit product a · b. */
function multiply_high(a: u64, b: u64): u64 {
  const aLow = a & 0xffffffff;
  const aHigh = a >> 32;
  const bLow = b & 0xffffffff;
  const bHigh = b >> 32;
  const first = aHigh * bLow + ((aLow * bLow) >> 32);
  const second = aLow * bHigh + (first & 0xffffffff);
  return aHigh * bHigh + (first >> 32) + (second >> 32);
}
