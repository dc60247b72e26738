/**
 * Paged causal attention of one tile: consecutive rows of one sequence, one KV head with all its query heads.
 *
 *   Online softmax, blocks ascending, rescaled once per block, tokens ascending inside it: what a row computes depends on its
 *   absolute position only, never on the tile, the chunk or the thread (E2). K and V are read after rounding to the KV dtype.
 *
 *   A few queries (row and head), as in decode: K and V are converted in registers, once for up to four heads.
 *   Many, as in prefill: a block is unpacked into `scratch`, which the first cache level holds, and serves all of them.
 *   Both add in the same order: a score in four lanes along head_dim, then (0 + 1) + (2 + 3); an output token by token.
 *
 *   scratch  scores [4][block_size + 4], then [rows][group][2] running max and sum, then f32 [2][block_size][head_dim]
 *   window   tokens that a row sees, its own included; 0: all
 *   head_dim is a multiple of 4, block_size of 4.
 */
import { exp1, exp4, load4_f16, madd, sum4 } from './simd.as';

const LOWEST: f32 = -1e30;
/** Queries from which unpacking a block pays. */
const MANY: u32 = 9;

export function attention_tile(
  q: usize,
  qStride: usize,
  out: usize,
  outStride: usize,
  kv: usize,
  planeBytes: usize,
  blockBytes: usize,
  blockTable: usize,
  rows: u32,
  position: u32,
  kvHead: u32,
  kvHeads: u32,
  group: u32,
  headDim: u32,
  blockSize: u32,
  scale: f32,
  isF16: u32,
  window: u32,
  scratch: usize,
): void {
  const headBytes: usize = (headDim as usize) << 2;
  const scoreBytes: usize = ((blockSize + 4) as usize) << 2;
  const state: usize = scratch + (scoreBytes << 2);
  const unpacked: usize = (state + ((rows * group) as usize) * 8 + 63) & ~63;
  const unpackedBytes: usize = (blockSize as usize) * headBytes;
  const firstHead: usize = ((kvHead * group) as usize) * headBytes;
  const isUnpacked = rows * group >= MANY;

  for (let i: u32 = 0; i < rows; i++) {
    memory.fill(out + (i as usize) * outStride + firstHead, 0, (group as usize) * headBytes);
    for (let g: u32 = 0; g < group; g++) {
      const at: usize = state + (((i * group + g) as usize) << 3);
      store<f32>(at, LOWEST);
      store<f32>(at, 0, 4);
    }
  }

  const lastPosition = position + rows - 1;
  const shift: usize = isF16 ? 1 : 2;
  for (let block: u32 = first_visible(position, window) / blockSize; block * blockSize <= lastPosition; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const blockId = load<u32>(blockTable + ((block as usize) << 2));
    let k: usize = kv + (blockId as usize) * blockBytes + (((kvHead * headDim) as usize) << shift);
    let v: usize = k + planeBytes;
    let tokenBytes: usize = ((kvHeads * headDim) as usize) << shift;
    if (isUnpacked) {
      unpack(k, tokenBytes, unpacked, numTokens, headBytes, isF16);
      unpack(v, tokenBytes, unpacked + unpackedBytes, numTokens, headBytes, isF16);
      k = unpacked;
      v = unpacked + unpackedBytes;
      tokenBytes = headBytes;
    }
    for (let i: u32 = 0; i < rows; i++) {
      if (position + i < first) continue;
      const end = min<u32>(numTokens, position + i - first + 1);
      const from = first_visible(position + i, window);
      const start: u32 = from > first ? from - first : 0;
      if (start >= end) continue;
      const qRow = q + (i as usize) * qStride + firstHead;
      const outRow = out + (i as usize) * outStride + firstHead;
      const stateRow = state + (((i * group) as usize) << 3);
      let g: u32 = 0;
      while (g < group) {
        const numHeads = isUnpacked ? min<u32>(2, group - g) : min<u32>(4, group - g);
        const at = (g as usize) * headBytes;
        if (isUnpacked) {
          if (numHeads == 2) scores_2_heads(qRow + at, headBytes, k, end, scratch, scoreBytes);
          else scores_1_head(qRow + at, headBytes, k, end, scratch, scoreBytes);
        } else if (isF16) scores_f16(numHeads, qRow + at, headBytes, k, tokenBytes, start, end, scratch, scoreBytes);
        else scores_f32(numHeads, qRow + at, headBytes, k, tokenBytes, start, end, scratch, scoreBytes);
        for (let h: u32 = 0; h < numHeads; h++) {
          const to = outRow + at + (h as usize) * headBytes;
          softmax(scratch + (h as usize) * scoreBytes, start, end, scale, stateRow + (((g + h) as usize) << 3), to, headBytes);
        }
        const weights = scratch + ((start as usize) << 2);
        const vStart = v + (start as usize) * tokenBytes;
        const count = end - start;
        if (isUnpacked) {
          for (let h: u32 = 0; h < numHeads; h++) {
            values_1_head(weights + (h as usize) * scoreBytes, vStart, count, outRow + at + (h as usize) * headBytes, headBytes);
          }
        } else if (isF16) values_f16(numHeads, weights, scoreBytes, vStart, tokenBytes, count, outRow + at, headBytes);
        else values_f32(numHeads, weights, scoreBytes, vStart, tokenBytes, count, outRow + at, headBytes);
        g += numHeads;
      }
    }
  }

  for (let i: u32 = 0; i < rows; i++) {
    for (let g: u32 = 0; g < group; g++) {
      const sum = load<f32>(state + (((i * group + g) as usize) << 3), 4);
      const at: usize = out + (i as usize) * outStride + firstHead + (g as usize) * headBytes;
      const inverse = f32x4.splat((1.0 as f32) / sum);
      for (let d: usize = 0; d < headBytes; d += 16) v128.store(at + d, f32x4.mul(v128.load(at + d), inverse));
    }
  }
}

/** The first position that a row sees; a window of 0 is none. */
// @ts-ignore: decorator
@inline
function first_visible(position: u32, window: u32): u32 {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

/** A block's plane of one head, [tokens][head_dim] f32. */
function unpack(from: usize, fromBytes: usize, to: usize, numTokens: u32, headBytes: usize, isF16: u32): void {
  for (let t: u32 = 0; t < numTokens; t++) {
    if (isF16) for (let d: usize = 0; d < headBytes; d += 16) v128.store(to + d, load4_f16(from + (d >> 1)));
    else memory.copy(to, from, headBytes);
    from += fromBytes;
    to += headBytes;
  }
}

/** [scores] of four tokens a turn, all from token 0 (a turn may run beyond `end`, within the block). K is unpacked. */
function scores_2_heads(q: usize, headBytes: usize, k: usize, end: u32, scores: usize, scoreBytes: usize): void {
  scores_of_4(2, q, headBytes, k, end, scores, scoreBytes);
}

function scores_1_head(q: usize, headBytes: usize, k: usize, end: u32, scores: usize, scoreBytes: usize): void {
  scores_of_4(1, q, headBytes, k, end, scores, scoreBytes);
}

// @ts-ignore: decorator
@inline
function scores_of_4(heads: i32, q: usize, headBytes: usize, k: usize, end: u32, scores: usize, scoreBytes: usize): void {
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
    let q0 = q,
      q1 = q + headBytes;
    for (const last = q + headBytes; q0 < last; q0 += 16) {
      const x = v128.load(q0);
      const y = heads > 1 ? v128.load(q1) : x;
      let z = v128.load(k0);
      a0 = madd(x, z, a0);
      if (heads > 1) b0 = madd(y, z, b0);
      z = v128.load(k1);
      a1 = madd(x, z, a1);
      if (heads > 1) b1 = madd(y, z, b1);
      z = v128.load(k2);
      a2 = madd(x, z, a2);
      if (heads > 1) b2 = madd(y, z, b2);
      z = v128.load(k3);
      a3 = madd(x, z, a3);
      if (heads > 1) b3 = madd(y, z, b3);
      if (heads > 1) q1 += 16;
      k0 += 16;
      k1 += 16;
      k2 += 16;
      k3 += 16;
    }
    const at = scores + ((t as usize) << 2);
    v128.store(at, sums_of_4(a0, a1, a2, a3));
    if (heads > 1) v128.store(at + scoreBytes, sums_of_4(b0, b1, b2, b3));
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

function scores_f16(
  heads: u32,
  q: usize,
  headBytes: usize,
  k: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  scores: usize,
  scoreBytes: usize,
): void {
  if (heads == 4) scores_of_2(4, 1, q, headBytes, k, tokenBytes, start, end, scores, scoreBytes);
  else if (heads == 3) scores_of_2(3, 1, q, headBytes, k, tokenBytes, start, end, scores, scoreBytes);
  else if (heads == 2) scores_of_2(2, 1, q, headBytes, k, tokenBytes, start, end, scores, scoreBytes);
  else scores_of_2(1, 1, q, headBytes, k, tokenBytes, start, end, scores, scoreBytes);
}

function scores_f32(
  heads: u32,
  q: usize,
  headBytes: usize,
  k: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  scores: usize,
  scoreBytes: usize,
): void {
  for (let h: u32 = 0; h < heads; h++) {
    scores_of_2(1, 0, q + (h as usize) * headBytes, headBytes, k, tokenBytes, start, end, scores + (h as usize) * scoreBytes, scoreBytes);
  }
}

/** [heads][scores] of tokens [start, end), two a turn, converted in registers. `heads` and `isF16` are constants. */
// @ts-ignore: decorator
@inline
function scores_of_2(
  heads: i32,
  isF16: i32,
  q: usize,
  headBytes: usize,
  k: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  scores: usize,
  scoreBytes: usize,
): void {
  for (let t = start; t < end; t += 2) {
    let k0 = k + (t as usize) * tokenBytes,
      k1 = t + 1 < end ? k0 + tokenBytes : k0;
    let a0 = f32x4.splat(0),
      a1 = a0,
      b0 = a0,
      b1 = a0,
      c0 = a0,
      c1 = a0,
      d0 = a0,
      d1 = a0;
    let qa = q,
      qb = qa + headBytes,
      qc = qb + headBytes,
      qd = qc + headBytes;
    for (const last = q + headBytes; qa < last; qa += 16) {
      const x = isF16 ? load4_f16(k0) : v128.load(k0);
      const y = isF16 ? load4_f16(k1) : v128.load(k1);
      let z = v128.load(qa);
      a0 = madd(z, x, a0);
      a1 = madd(z, y, a1);
      if (heads > 1) {
        z = v128.load(qb);
        b0 = madd(z, x, b0);
        b1 = madd(z, y, b1);
        qb += 16;
      }
      if (heads > 2) {
        z = v128.load(qc);
        c0 = madd(z, x, c0);
        c1 = madd(z, y, c1);
        qc += 16;
      }
      if (heads > 3) {
        z = v128.load(qd);
        d0 = madd(z, x, d0);
        d1 = madd(z, y, d1);
        qd += 16;
      }
      k0 += isF16 ? 8 : 16;
      k1 += isF16 ? 8 : 16;
    }
    // The second of a last odd token lies in the row's rest.
    let at = scores + ((t as usize) << 2);
    store_2(at, a0, a1);
    if (heads > 1) store_2((at += scoreBytes), b0, b1);
    if (heads > 2) store_2((at += scoreBytes), c0, c1);
    if (heads > 3) store_2(at + scoreBytes, d0, d1);
  }
}

// @ts-ignore: decorator
@inline
function store_2(at: usize, a: v128, b: v128): void {
  store<f32>(at, sum4(a));
  store<f32>(at, sum4(b), 4);
}

/**
 * Scores [start, end) of a head to weights e^(score · scale - max); the head's output so far is rescaled; `state` is [max, sum].
 */
function softmax(scores: usize, start: u32, end: u32, scale: f32, state: usize, out: usize, headBytes: usize): void {
  let highest = LOWEST;
  for (let t = start; t < end; t++) {
    const at = scores + ((t as usize) << 2);
    const score = load<f32>(at) * scale;
    store<f32>(at, score);
    highest = max<f32>(highest, score);
  }
  const before = load<f32>(state);
  const highestNow = max<f32>(before, highest);
  const shift = f32x4.splat(highestNow);
  for (let t = start & ~3; t < end; t += 4) {
    const at = scores + ((t as usize) << 2);
    v128.store(at, exp4(f32x4.sub(v128.load(at), shift)));
  }
  const rescale = exp1(before - highestNow);
  let sum = load<f32>(state, 4) * rescale;
  for (let t = start; t < end; t++) sum += load<f32>(scores + ((t as usize) << 2));
  store<f32>(state, highestNow);
  store<f32>(state, sum, 4);
  if (rescale == 1) return;
  const rescale4 = f32x4.splat(rescale);
  for (let d: usize = 0; d < headBytes; d += 16) v128.store(out + d, f32x4.mul(v128.load(out + d), rescale4));
}

/** out[head_dim] += weights · V, V unpacked; 32 outputs in registers. */
function values_1_head(weights: usize, v: usize, count: u32, out: usize, headBytes: usize): void {
  let d: usize = 0;
  for (; d + 128 <= headBytes; d += 128) {
    const at = out + d;
    let a = v128.load(at),
      b = v128.load(at, 16),
      c = v128.load(at, 32),
      e = v128.load(at, 48),
      f = v128.load(at, 64),
      g = v128.load(at, 80),
      h = v128.load(at, 96),
      i = v128.load(at, 112);
    let from = v + d;
    for (let w = weights, last = weights + ((count as usize) << 2); w < last; w += 4) {
      const s = v128.load32_splat(w);
      a = madd(s, v128.load(from), a);
      b = madd(s, v128.load(from, 16), b);
      c = madd(s, v128.load(from, 32), c);
      e = madd(s, v128.load(from, 48), e);
      f = madd(s, v128.load(from, 64), f);
      g = madd(s, v128.load(from, 80), g);
      h = madd(s, v128.load(from, 96), h);
      i = madd(s, v128.load(from, 112), i);
      from += headBytes;
    }
    v128.store(at, a);
    v128.store(at, b, 16);
    v128.store(at, c, 32);
    v128.store(at, e, 48);
    v128.store(at, f, 64);
    v128.store(at, g, 80);
    v128.store(at, h, 96);
    v128.store(at, i, 112);
  }
  for (; d < headBytes; d += 16) {
    let a = v128.load(out + d);
    let from = v + d;
    for (let w = weights, last = weights + ((count as usize) << 2); w < last; w += 4) {
      a = madd(v128.load32_splat(w), v128.load(from), a);
      from += headBytes;
    }
    v128.store(out + d, a);
  }
}

function values_f16(
  heads: u32,
  weights: usize,
  scoreBytes: usize,
  v: usize,
  tokenBytes: usize,
  count: u32,
  out: usize,
  headBytes: usize,
): void {
  if (heads == 4) values_of_8(4, 1, weights, scoreBytes, v, tokenBytes, count, out, headBytes);
  else if (heads == 3) values_of_8(3, 1, weights, scoreBytes, v, tokenBytes, count, out, headBytes);
  else if (heads == 2) values_of_8(2, 1, weights, scoreBytes, v, tokenBytes, count, out, headBytes);
  else values_of_8(1, 1, weights, scoreBytes, v, tokenBytes, count, out, headBytes);
}

function values_f32(
  heads: u32,
  weights: usize,
  scoreBytes: usize,
  v: usize,
  tokenBytes: usize,
  count: u32,
  out: usize,
  headBytes: usize,
): void {
  for (let h: u32 = 0; h < heads; h++) {
    values_of_8(1, 0, weights + (h as usize) * scoreBytes, scoreBytes, v, tokenBytes, count, out + (h as usize) * headBytes, headBytes);
  }
}

/** out[heads][head_dim] += weights[heads] · V, eight outputs of each head in registers, V converted there. */
// @ts-ignore: decorator
@inline
function values_of_8(
  heads: i32,
  isF16: i32,
  weights: usize,
  scoreBytes: usize,
  v: usize,
  tokenBytes: usize,
  count: u32,
  out: usize,
  headBytes: usize,
): void {
  const last = weights + ((count as usize) << 2);
  // The last four of a head_dim that is no multiple of 8 are computed with their neighbours before them, which are not stored.
  for (let d: usize = 0; d < headBytes; d += 32) {
    const hasTwo = d + 32 <= headBytes;
    const second: usize = hasTwo ? 16 : 0;
    let at = out + d;
    let a0 = v128.load(at),
      a1 = v128.load(at + second),
      b0 = a0,
      b1 = a0,
      c0 = a0,
      c1 = a0,
      e0 = a0,
      e1 = a0;
    if (heads > 1) {
      at += headBytes;
      b0 = v128.load(at);
      b1 = v128.load(at + second);
    }
    if (heads > 2) {
      at += headBytes;
      c0 = v128.load(at);
      c1 = v128.load(at + second);
    }
    if (heads > 3) {
      at += headBytes;
      e0 = v128.load(at);
      e1 = v128.load(at + second);
    }
    let from = v + (isF16 ? d >> 1 : d);
    const secondKv: usize = isF16 ? second >> 1 : second;
    let wa = weights,
      wb = wa + scoreBytes,
      wc = wb + scoreBytes,
      we = wc + scoreBytes;
    for (; wa < last; wa += 4) {
      const x = isF16 ? load4_f16(from) : v128.load(from);
      const y = isF16 ? load4_f16(from + secondKv) : v128.load(from + secondKv);
      let s = v128.load32_splat(wa);
      a0 = madd(s, x, a0);
      a1 = madd(s, y, a1);
      if (heads > 1) {
        s = v128.load32_splat(wb);
        b0 = madd(s, x, b0);
        b1 = madd(s, y, b1);
        wb += 4;
      }
      if (heads > 2) {
        s = v128.load32_splat(wc);
        c0 = madd(s, x, c0);
        c1 = madd(s, y, c1);
        wc += 4;
      }
      if (heads > 3) {
        s = v128.load32_splat(we);
        e0 = madd(s, x, e0);
        e1 = madd(s, y, e1);
        we += 4;
      }
      from += tokenBytes;
    }
    at = out + d;
    v128.store(at + second, a1);
    v128.store(at, a0);
    if (heads > 1) {
      at += headBytes;
      v128.store(at + second, b1);
      v128.store(at, b0);
    }
    if (heads > 2) {
      at += headBytes;
      v128.store(at + second, c1);
      v128.store(at, c0);
    }
    if (heads > 3) {
      at += headBytes;
      v128.store(at + second, e1);
      v128.store(at, e0);
    }
  }
}
