/**
 * The best `count` logits of a row (descending, ties by ascending id) and its log-sum-exp parts.
 *
 *   logits  f32 [vocab]
 *   ids, values  [count] u32, f32 out
 *   stats   f32 [2] out: max, sum of e^(logit - max)
 */
import { exp4, sum4 } from './simd.as';

/**
 * Parameters of {@link candidates}: logits [samples] of `vocab` f32, `stride` bytes apart; ids and values are
 * [samples][maxCandidates], stats [samples][2].
 */
// @ts-ignore: decorator
@unmanaged
export class CandidatesParams {
  logits: usize;
  stride: usize;
  vocab: u32;
  /** [samples] u32: number of candidates requested per sample; 0: the sample is skipped. */
  counts: usize;
  ids: usize;
  values: usize;
  stats: usize;
  /** Candidates per sample that `ids` and `values` have room for. */
  maxCandidates: u32;
}

/** Writes the candidates and log-sum-exp parts of samples [start, end). */
export function candidates(params: CandidatesParams, start: u32, end: u32): void {
  for (let sample = start; sample < end; sample++) {
    const count = load<u32>(params.counts + ((sample as usize) << 2));
    if (count == 0) continue;
    const list = ((sample * params.maxCandidates) as usize) << 2;
    const logits = params.logits + (sample as usize) * params.stride;
    candidates_of(logits, params.vocab, count, params.ids + list, params.values + list, params.stats + ((sample as usize) << 3));
  }
}

function candidates_of(logits: usize, vocab: u32, count: u32, ids: usize, values: usize, stats: usize): void {
  let filled: u32 = 0;
  let worst: f32 = 0;
  let worst4 = f32x4.splat(0);
  for (let token: u32 = 0; token < vocab; token++) {
    if (filled == count) {
      // Skips four logits at once when none exceeds the worst kept one. A NaN never does.
      while (token + 4 <= vocab && !v128.any_true(f32x4.gt(v128.load(logits + ((token as usize) << 2)), worst4))) token += 4;
      if (token == vocab) break;
    }
    const value = load<f32>(logits + ((token as usize) << 2));
    if (filled == count && !(value > worst)) continue;
    let at = filled < count ? filled : count - 1;
    // Equal values keep their order, so the smaller id stays first.
    while (at > 0 && load<f32>(values + (((at - 1) as usize) << 2)) < value) {
      store<f32>(values + ((at as usize) << 2), load<f32>(values + (((at - 1) as usize) << 2)));
      store<u32>(ids + ((at as usize) << 2), load<u32>(ids + (((at - 1) as usize) << 2)));
      at--;
    }
    store<f32>(values + ((at as usize) << 2), value);
    store<u32>(ids + ((at as usize) << 2), token);
    if (filled < count) filled++;
    worst = load<f32>(values + (((filled - 1) as usize) << 2));
    worst4 = f32x4.splat(worst);
  }
  const highest = load<f32>(values);
  const shift = f32x4.splat(highest);
  let sums = f32x4.splat(0);
  let token: u32 = 0;
  for (; token + 4 <= vocab; token += 4) {
    sums = f32x4.add(sums, exp4(f32x4.sub(v128.load(logits + ((token as usize) << 2)), shift)));
  }
  let sum = sum4(sums);
  for (; token < vocab; token++) {
    sum += f32x4.extract_lane(exp4(f32x4.sub(v128.load32_splat(logits + ((token as usize) << 2)), shift)), 0);
  }
  store<f32>(stats, highest);
  store<f32>(stats, sum, 4);
}
