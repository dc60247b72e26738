/**
 * Attention of few queries to a block: K and V are converted in registers, once for up to four heads, and the lines of the next block
 * are touched on the way.
 */
import { load4_f16_small, madd, sum4, touch } from './simd.as';

/** Tokens whose scores are computed between two bursts of touches. */
export const TOUCH_TOKENS: u32 = 8;

export function scores_f16(
  heads: u32,
  q: usize,
  headBytes: usize,
  k: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  scores: usize,
  scoreBytes: usize,
  next: usize,
  nextBytes: usize,
  sink: usize,
): void {
  for (let t = start; t < end; t += TOUCH_TOKENS) {
    const last = min<u32>(end, t + TOUCH_TOKENS);
    if (next) {
      touch(next, nextBytes, sink);
      next += nextBytes;
    }
    if (heads == 4) scores_of_2(4, 1, q, headBytes, k, tokenBytes, t, last, scores, scoreBytes);
    else if (heads == 3) scores_of_2(3, 1, q, headBytes, k, tokenBytes, t, last, scores, scoreBytes);
    else if (heads == 2) scores_of_2(2, 1, q, headBytes, k, tokenBytes, t, last, scores, scoreBytes);
    else scores_of_2(1, 1, q, headBytes, k, tokenBytes, t, last, scores, scoreBytes);
  }
}

export function scores_f32(
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

/** [heads][scores] of tokens [start, end), two a turn, f16 to 2^-112 of it in registers. `heads` and `isF16` are constants. */
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
    let x: v128, y: v128, z: v128;
    for (const last = q + headBytes; qa < last; qa += 16) {
      x = isF16 ? load4_f16_small(k0) : v128.load(k0);
      y = isF16 ? load4_f16_small(k1) : v128.load(k1);
      z = v128.load(qa);
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

export function values_f16(
  heads: u32,
  weights: usize,
  scoreBytes: usize,
  v: usize,
  tokenBytes: usize,
  count: u32,
  out: usize,
  outHeadBytes: usize,
  headBytes: usize,
  next: usize,
  nextBytes: usize,
  sink: usize,
): void {
  for (let d: usize = 0; d < headBytes; d += 32) {
    const bytes = min<usize>(32, headBytes - d);
    const from = v + (d >> 1);
    const to = out + d;
    if (next) {
      touch(next, nextBytes, sink);
      next += nextBytes;
    }
    if (heads == 4) values_of_8(4, 1, weights, scoreBytes, from, tokenBytes, count, to, outHeadBytes, bytes);
    else if (heads == 3) values_of_8(3, 1, weights, scoreBytes, from, tokenBytes, count, to, outHeadBytes, bytes);
    else if (heads == 2) values_of_8(2, 1, weights, scoreBytes, from, tokenBytes, count, to, outHeadBytes, bytes);
    else values_of_8(1, 1, weights, scoreBytes, from, tokenBytes, count, to, outHeadBytes, bytes);
  }
}

export function values_f32(
  heads: u32,
  weights: usize,
  scoreBytes: usize,
  v: usize,
  tokenBytes: usize,
  count: u32,
  out: usize,
  outHeadBytes: usize,
  headBytes: usize,
): void {
  for (let h: u32 = 0; h < heads; h++) {
    const weightsOne = weights + (h as usize) * scoreBytes;
    for (let d: usize = 0; d < headBytes; d += 32) {
      const to = out + (h as usize) * outHeadBytes + d;
      values_of_8(1, 0, weightsOne, scoreBytes, v + d, tokenBytes, count, to, outHeadBytes, min<usize>(32, headBytes - d));
    }
  }
}

/** out[heads][8], outHeadBytes apart, += weights[heads] · V in registers; `bytes` is 16 when there are only four. */
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
  outHeadBytes: usize,
  bytes: usize,
): void {
  const last = weights + ((count as usize) << 2);
  const second: usize = bytes == 32 ? 16 : 0;
  let at = out;
  let a0 = v128.load(at),
    a1 = v128.load(at + second),
    b0 = a0,
    b1 = a0,
    c0 = a0,
    c1 = a0,
    e0 = a0,
    e1 = a0;
  if (heads > 1) {
    at += outHeadBytes;
    b0 = v128.load(at);
    b1 = v128.load(at + second);
  }
  if (heads > 2) {
    at += outHeadBytes;
    c0 = v128.load(at);
    c1 = v128.load(at + second);
  }
  if (heads > 3) {
    at += outHeadBytes;
    e0 = v128.load(at);
    e1 = v128.load(at + second);
  }
  let from = v;
  const secondKv: usize = isF16 ? second >> 1 : second;
  let wa = weights,
    wb = wa + scoreBytes,
    wc = wb + scoreBytes,
    we = wc + scoreBytes;
  let x: v128, y: v128, s: v128;
  for (; wa < last; wa += 4) {
    x = isF16 ? load4_f16_small(from) : v128.load(from);
    y = isF16 ? load4_f16_small(from + secondKv) : v128.load(from + secondKv);
    s = v128.load32_splat(wa);
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
  at = out;
  v128.store(at + second, a1);
  v128.store(at, a0);
  if (heads > 1) {
    at += outHeadBytes;
    v128.store(at + second, b1);
    v128.store(at, b0);
  }
  if (heads > 2) {
    at += outHeadBytes;
    v128.store(at + second, c1);
    v128.store(at, c0);
  }
  if (heads > 3) {
    at += outHeadBytes;
    v128.store(at + second, e1);
    v128.store(at, e0);
  }
}
