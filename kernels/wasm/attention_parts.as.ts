/** What both ways through a block share: which of its tokens a row sees, and the softmax of their scores. */
import { exp1, exp4, sum4 } from './simd.as';

export const LOWEST: f32 = -1e30;

/** The first position that a row sees; a window of 0 is none. */
// @ts-ignore: decorator
@inline
export function first_visible(position: u32, window: u32): u32 {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

/** Tokens [start, end) of the block that begins at `first` are what a row sees of it. */
// @ts-ignore: decorator
@inline
export function start_in(position: u32, first: u32, window: u32): u32 {
  const from = first_visible(position, window);
  return from > first ? from - first : 0;
}

// @ts-ignore: decorator
@inline
export function end_in(position: u32, first: u32, numTokens: u32): u32 {
  return position < first ? 0 : min<u32>(numTokens, position - first + 1);
}

/**
 * Scores [start, end) of a query to weights e^(score · scale - max); what its record has so far is rescaled. Tokens around the ends,
 * up to whole vectors, get weight 0, so that a sum's lanes are the tokens' places in the block.
 */
export function softmax(scores: usize, start: u32, end: u32, scale: f32, record: usize, headBytes: usize): void {
  const state = record + headBytes;
  const from = scores + (((start & ~3) as usize) << 2);
  const to = scores + ((((end + 3) & ~3) as usize) << 2);
  for (let at = from; at < scores + ((start as usize) << 2); at += 4) store<f32>(at, LOWEST);
  for (let at = scores + ((end as usize) << 2); at < to; at += 4) store<f32>(at, LOWEST);
  const scale4 = f32x4.splat(scale);
  let highest4 = f32x4.splat(LOWEST);
  for (let at = from; at < to; at += 16) {
    const score = f32x4.mul(v128.load(at), scale4);
    v128.store(at, score);
    highest4 = f32x4.pmax(highest4, score);
  }
  highest4 = f32x4.pmax(highest4, i8x16.shuffle(highest4, highest4, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  const highest = max<f32>(f32x4.extract_lane(highest4, 0), f32x4.extract_lane(highest4, 1));
  const before = load<f32>(state);
  const highestNow = max<f32>(before, highest);
  const shift = f32x4.splat(highestNow);
  let sums = f32x4.splat(0);
  for (let at = from; at < to; at += 16) {
    const weight = exp4(f32x4.sub(v128.load(at), shift));
    v128.store(at, weight);
    sums = f32x4.add(sums, weight);
  }
  const rescale = exp1(before - highestNow);
  store<f32>(state, highestNow);
  store<f32>(state, load<f32>(state, 4) * rescale + sum4(sums), 4);
  if (rescale == 1) return;
  const rescale4 = f32x4.splat(rescale);
  for (let d: usize = 0; d < headBytes; d += 16) v128.store(record + d, f32x4.mul(v128.load(record + d), rescale4));
}
