/** Attention of many queries to a block: it is unpacked once, in the first cache level, and serves them two at a time. */
import { end_in, softmax, start_in } from './attention_parts.as';
import { load4_f16, madd } from './simd.as';

/** A block's plane of one head, [tokens][head_dim] f32. */
export function unpack(from: usize, fromBytes: usize, to: usize, numTokens: u32, headBytes: usize, isF16: u32): void {
  for (let t: u32 = 0; t < numTokens; t++) {
    if (isF16) for (let d: usize = 0; d < headBytes; d += 16) v128.store(to + d, load4_f16(from + (d >> 1)));
    else memory.copy(to, from, headBytes);
    from += fromBytes;
    to += headBytes;
  }
}

/** One unpacked block of one KV head for all queries of a tile, two at a time; records [group][rows]. */
export function attend_many(
  q: usize,
  qStride: usize,
  k: usize,
  v: usize,
  rows: u32,
  group: u32,
  position: u32,
  first: u32,
  numTokens: u32,
  window: u32,
  scale: f32,
  records: usize,
  rowRecords: usize,
  headBytes: usize,
  scratch: usize,
  scoreBytes: usize,
): void {
  const recordBytes = headBytes + 16;
  const numQueries = rows * group;
  // Rows before the block see none of it.
  let query: u32 = position >= first ? 0 : (first - position) * group;
  while (query < numQueries) {
    const i = query / group;
    const g = query - i * group;
    const start = start_in(position + i, first, window);
    const end = end_in(position + i, first, numTokens);
    const hasSecond = query + 1 < numQueries;
    const i2 = hasSecond ? (query + 1) / group : i;
    const g2 = hasSecond ? query + 1 - i2 * group : g;
    const start2 = start_in(position + i2, first, window);
    const end2 = end_in(position + i2, first, numTokens);
    query += 2;
    const qOne = q + (i as usize) * qStride + (g as usize) * headBytes;
    const qTwo = q + (i2 as usize) * qStride + (g2 as usize) * headBytes;
    const one = records + (g as usize) * rowRecords + (i as usize) * recordBytes;
    const two = records + (g2 as usize) * rowRecords + (i2 as usize) * recordBytes;
    if (start >= end && start2 >= end2) continue;
    scores_of_4(qOne, qTwo, headBytes, k, max<u32>(end, end2), scratch, scoreBytes);
    if (start < end) softmax(scratch, start, end, scale, one, headBytes);
    if (hasSecond && start2 < end2) softmax(scratch + scoreBytes, start2, end2, scale, two, headBytes);
    const weights = scratch + ((start as usize) << 2);
    const vStart = v + (start as usize) * headBytes;
    if (hasSecond && start == start2 && end == end2) {
      values_of_two(weights, weights + scoreBytes, vStart, end - start, one, two, headBytes);
      continue;
    }
    if (start < end) values_from(0, weights, vStart, end - start, one, headBytes);
    if (!hasSecond || start2 >= end2) continue;
    const weights2 = scratch + scoreBytes + ((start2 as usize) << 2);
    values_from(0, weights2, v + (start2 as usize) * headBytes, end2 - start2, two, headBytes);
  }
}

/** Scores of two queries, four tokens a turn from token 0; the last turn may run beyond `end`, within the block. K is unpacked. */
function scores_of_4(
  q0: usize,
  q1: usize,
  headBytes: usize,
  k: usize,
  end: u32,
  scores: usize,
  scoreBytes: usize,
): void {
  for (let t: u32 = 0; t < end; t += 4) {
    let k0 = k,
      k1 = k0 + headBytes,
      k2 = k1 + headBytes,
      k3 = k2 + headBytes;
    let a0 = f32x4.splat(0),
      a1 = a0,
      a2 = a0,
      a3 = a0,
      b0 = a0,
      b1 = a0,
      b2 = a0,
      b3 = a0;
    let qa = q0,
      qb = q1;
    for (const last = q0 + headBytes; qa < last; qa += 16) {
      const x = v128.load(qa);
      const y = v128.load(qb);
      let z = v128.load(k0);
      a0 = madd(x, z, a0);
      b0 = madd(y, z, b0);
      z = v128.load(k1);
      a1 = madd(x, z, a1);
      b1 = madd(y, z, b1);
      z = v128.load(k2);
      a2 = madd(x, z, a2);
      b2 = madd(y, z, b2);
      z = v128.load(k3);
      a3 = madd(x, z, a3);
      b3 = madd(y, z, b3);
      qb += 16;
      k0 += 16;
      k1 += 16;
      k2 += 16;
      k3 += 16;
    }
    const at = scores + ((t as usize) << 2);
    v128.store(at, sums_of_4(a0, a1, a2, a3));
    v128.store(at + scoreBytes, sums_of_4(b0, b1, b2, b3));
    k += headBytes << 2;
  }
}

/** [sum4(a), sum4(b), sum4(c), sum4(d)], added in sum4's order. */
// @ts-ignore: decorator
@inline
function sums_of_4(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab01 = i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const cd01 = i8x16.shuffle(c, d, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const ab23 = i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const cd23 = i8x16.shuffle(c, d, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const lane0 = i8x16.shuffle(ab01, cd01, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  const lane1 = i8x16.shuffle(ab01, cd01, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  const lane2 = i8x16.shuffle(ab23, cd23, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  const lane3 = i8x16.shuffle(ab23, cd23, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return f32x4.add(f32x4.add(lane0, lane1), f32x4.add(lane2, lane3));
}

/** out[head_dim] += weights · V of two queries, V unpacked; 16 outputs of each in registers. */
function values_of_two(
  weights: usize,
  weights2: usize,
  v: usize,
  count: u32,
  out: usize,
  out2: usize,
  headBytes: usize,
): void {
  let d: usize = 0;
  const last = weights + ((count as usize) << 2);
  for (; d + 64 <= headBytes; d += 64) {
    let a0 = v128.load(out + d),
      a1 = v128.load(out + d, 16),
      a2 = v128.load(out + d, 32),
      a3 = v128.load(out + d, 48);
    let b0 = v128.load(out2 + d),
      b1 = v128.load(out2 + d, 16),
      b2 = v128.load(out2 + d, 32),
      b3 = v128.load(out2 + d, 48);
    let from = v + d;
    let w2 = weights2;
    for (let w = weights; w < last; w += 4) {
      const s = v128.load32_splat(w);
      const t = v128.load32_splat(w2);
      let x = v128.load(from);
      a0 = madd(s, x, a0);
      b0 = madd(t, x, b0);
      x = v128.load(from, 16);
      a1 = madd(s, x, a1);
      b1 = madd(t, x, b1);
      x = v128.load(from, 32);
      a2 = madd(s, x, a2);
      b2 = madd(t, x, b2);
      x = v128.load(from, 48);
      a3 = madd(s, x, a3);
      b3 = madd(t, x, b3);
      w2 += 4;
      from += headBytes;
    }
    v128.store(out + d, a0);
    v128.store(out + d, a1, 16);
    v128.store(out + d, a2, 32);
    v128.store(out + d, a3, 48);
    v128.store(out2 + d, b0);
    v128.store(out2 + d, b1, 16);
    v128.store(out2 + d, b2, 32);
    v128.store(out2 + d, b3, 48);
  }
  if (d == headBytes) return;
  values_from(d, weights, v, count, out, headBytes);
  values_from(d, weights2, v, count, out2, headBytes);
}

/** out[head_dim] += weights · V of one query from byte `d` on, V unpacked. */
function values_from(d: usize, weights: usize, v: usize, count: u32, out: usize, headBytes: usize): void {
  const last = weights + ((count as usize) << 2);
  for (; d + 32 <= headBytes; d += 32) {
    let a = v128.load(out + d),
      b = v128.load(out + d, 16);
    let from = v + d;
    for (let w = weights; w < last; w += 4) {
      const s = v128.load32_splat(w);
      a = madd(s, v128.load(from), a);
      b = madd(s, v128.load(from, 16), b);
      from += headBytes;
    }
    v128.store(out + d, a);
    v128.store(out + d, b, 16);
  }
  for (; d < headBytes; d += 16) {
    let a = v128.load(out + d);
    let from = v + d;
    for (let w = weights; w < last; w += 4) {
      a = madd(v128.load32_splat(w), v128.load(from), a);
      from += headBytes;
    }
    v128.store(out + d, a);
  }
}
