/**
 * Paged causal attention: consecutive rows of one sequence, some KV heads with all their query heads.
 *
 *   Online softmax over spans of SPAN tokens, each from nothing, blocks ascending and rescaled once per block, tokens ascending
 *   inside; spans are then merged in order. What a row computes depends on its absolute position only, never on the tile, the
 *   chunk or on which threads took which spans (E2). K and V are read after rounding to the KV dtype.
 *
 *   A few queries (row and head), as in decode: K and V are converted in registers, once for up to four heads, to 2^-112 of their
 *   values; queries are 2^96 and weights 2^112 times as large instead, scores 2^16 times, and no bit differs.
 *   Many, as in prefill: a block is unpacked into `scratch`, which the first cache level holds, and serves all of them.
 *   Both add in the same order: a score in four lanes along head_dim, then (0 + 1) + (2 + 3); an output token by token.
 *
 *   record   what a span makes of one query: [head_dim] f32 not yet divided, then running max and sum, 8 bytes unused
 *   scratch  scores [4][block_size + 4] f32, a cache line, [2][block_size][head_dim] f32 and [heads][rows][head_dim] f32: a block's K
 *            and V, or few queries scaled; then for attention_tile [heads][rows] records and [heads][rows][2] f32
 *   window   tokens that a row sees, its own included; 0: all
 *   head_dim and block_size are multiples of 4.
 */
import { exp1, exp4, load4_f16, load4_f16_small, madd, sum4, touch, TWO_112 } from './simd.as';

const LOWEST: f32 = -1e30;
/** Tokens whose scores are computed between two bursts of touches. */
const TOUCH_TOKENS: u32 = 8;
const TWO_96: f32 = 79228162514264337593543950336.0;
const TWO_16: f32 = 65536.0;
/** Queries from which unpacking a block pays. */
const MANY: u32 = 9;
/** Tokens of a span, in whole blocks, at least one. Shorter spans balance threads better and cost more merging. */
const SPAN: u32 = 128;

/** The outputs of a tile's rows for KV heads [kvHeadStart, kvHeadEnd). */
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
  kvHeadStart: u32,
  kvHeadEnd: u32,
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
  const recordBytes = headBytes + 16;
  const numQueries = (kvHeadEnd - kvHeadStart) * group * rows;
  const records = unpacked_at(scratch, blockSize) + (2 * (blockSize as usize) + (numQueries as usize)) * headBytes;
  const totals = records + (numQueries as usize) * recordBytes;
  const headStart = kvHeadStart * group;
  const numHeads = (kvHeadEnd - kvHeadStart) * group;

  for (let head: u32 = 0; head < numHeads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      memory.fill(out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes, 0, headBytes);
      const total = totals + (((head * rows + i) as usize) << 3);
      store<f32>(total, LOWEST);
      store<f32>(total, 0, 4);
    }
  }
  const last = position + rows - 1;
  const spanTokens = span_blocks(blockSize) * blockSize;
  for (let span = first_visible(position, window) / spanTokens; span * spanTokens <= last; span++) {
    attend_span(
      q, qStride, kv, planeBytes, blockBytes, blockTable, rows, position, kvHeadStart, kvHeadEnd,
      kvHeads, group, headDim, blockSize, scale, isF16, window, span, records, scratch,
    );
    for (let head: u32 = 0; head < numHeads; head++) {
      for (let i: u32 = 0; i < rows; i++) {
        const query = (head * rows + i) as usize;
        const to = out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes;
        merge(to, totals + (query << 3), records + query * recordBytes, headBytes);
      }
    }
  }
  for (let head: u32 = 0; head < numHeads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      const sum = load<f32>(totals + (((head * rows + i) as usize) << 3), 4);
      divide(out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes, sum, headBytes);
    }
  }
}

/** One row's records of one span, for KV heads [kvHeadStart, kvHeadEnd): {@link attention_merge} makes the output of all spans'. */
export function attention_span(
  q: usize,
  kv: usize,
  planeBytes: usize,
  blockBytes: usize,
  blockTable: usize,
  position: u32,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  kvHeads: u32,
  group: u32,
  headDim: u32,
  blockSize: u32,
  scale: f32,
  isF16: u32,
  window: u32,
  span: u32,
  records: usize,
  scratch: usize,
): void {
  attend_span(
    q, 0, kv, planeBytes, blockBytes, blockTable, 1, position, kvHeadStart, kvHeadEnd,
    kvHeads, group, headDim, blockSize, scale, isF16, window, span, records, scratch,
  );
}

/** out[heads][head_dim] of one row from records [spans][heads], in order. `total`: room for 8 bytes. */
export function attention_merge(
  records: usize,
  spans: u32,
  spanBytes: usize,
  heads: u32,
  headDim: u32,
  out: usize,
  total: usize,
): void {
  const headBytes: usize = (headDim as usize) << 2;
  for (let head: u32 = 0; head < heads; head++) {
    memory.fill(out, 0, headBytes);
    store<f32>(total, LOWEST);
    store<f32>(total, 0, 4);
    let record = records + (head as usize) * (headBytes + 16);
    for (let span: u32 = 0; span < spans; span++) {
      merge(out, total, record, headBytes);
      record += spanBytes;
    }
    divide(out, load<f32>(total, 4), headBytes);
    out += headBytes;
  }
}

// @ts-ignore: decorator
@inline
function unpacked_at(scratch: usize, blockSize: u32): usize {
  return scratch + (((blockSize + 4) as usize) << 4) + 64;
}

/** Adds a span's record to an output and its [max, sum]; a span that the row does not see changes nothing. */
function merge(out: usize, total: usize, record: usize, headBytes: usize): void {
  const sum = load<f32>(record + headBytes, 4);
  if (sum == 0) return;
  const highest = load<f32>(record + headBytes);
  const before = load<f32>(total);
  const highestNow = max<f32>(before, highest);
  const keep = exp1(before - highestNow);
  const take = exp1(highest - highestNow);
  store<f32>(total, highestNow);
  store<f32>(total, load<f32>(total, 4) * keep + sum * take, 4);
  const keep4 = f32x4.splat(keep);
  const take4 = f32x4.splat(take);
  for (let d: usize = 0; d < headBytes; d += 16) {
    v128.store(out + d, f32x4.add(f32x4.mul(v128.load(out + d), keep4), f32x4.mul(v128.load(record + d), take4)));
  }
}

function divide(out: usize, sum: f32, headBytes: usize): void {
  const inverse = f32x4.splat((1.0 as f32) / sum);
  for (let d: usize = 0; d < headBytes; d += 16) v128.store(out + d, f32x4.mul(v128.load(out + d), inverse));
}

/** records[heads][rows] of one span. */
function attend_span(
  q: usize,
  qStride: usize,
  kv: usize,
  planeBytes: usize,
  blockBytes: usize,
  blockTable: usize,
  rows: u32,
  position: u32,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  kvHeads: u32,
  group: u32,
  headDim: u32,
  blockSize: u32,
  scale: f32,
  isF16: u32,
  window: u32,
  span: u32,
  records: usize,
  scratch: usize,
): void {
  const headBytes: usize = (headDim as usize) << 2;
  const recordBytes = headBytes + 16;
  const rowRecords = (rows as usize) * recordBytes;
  const scoreBytes: usize = ((blockSize + 4) as usize) << 2;
  const sink = scratch + (scoreBytes << 2);
  const unpackedK = unpacked_at(scratch, blockSize);
  const unpackedV = unpackedK + (blockSize as usize) * headBytes;
  const isUnpacked = rows * group >= MANY;
  const shift: usize = isF16 ? 1 : 2;
  const tokenBytes: usize = ((kvHeads * headDim) as usize) << shift;
  const numKvHeads = kvHeadEnd - kvHeadStart;

  for (let i: u32 = 0; i < numKvHeads * group * rows; i++) {
    const record = records + (i as usize) * recordBytes;
    memory.fill(record, 0, recordBytes);
    store<f32>(record + headBytes, LOWEST);
  }
  const isSmall = isF16 && !isUnpacked;
  const scaledQ = unpackedV + (blockSize as usize) * headBytes;
  if (isSmall) {
    const width = ((numKvHeads * group) as usize) * headBytes;
    for (let i: u32 = 0; i < rows; i++) {
      const from = q + (i as usize) * qStride + ((kvHeadStart * group) as usize) * headBytes;
      multiply(from, scaledQ + (i as usize) * width, width, TWO_96);
    }
    // Where head 0 would be.
    q = scaledQ - ((kvHeadStart * group) as usize) * headBytes;
    qStride = width;
  }
  const scoreScale = isSmall ? scale * TWO_16 : scale;
  const lastPosition = position + rows - 1;
  const visibleBlock = first_visible(position, window) / blockSize;
  const spanBlocks = span_blocks(blockSize);
  const blockEnd = min<u32>((span + 1) * spanBlocks, lastPosition / blockSize + 1);
  for (let block = max<u32>(span * spanBlocks, visibleBlock); block < blockEnd; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const blockAt = kv + (load<u32>(blockTable + ((block as usize) << 2)) as usize) * blockBytes;
    // The next block's planes, a part with every head's.
    const next: usize =
      isUnpacked || block + 1 == blockEnd
        ? 0
        : kv + (load<u32>(blockTable + (((block + 1) as usize) << 2)) as usize) * blockBytes;
    const touchedBytes = (tokenBytes * (blockSize as usize)) / (numKvHeads as usize);
    // About a KiB at a time.
    const touchedK = (touchedBytes * TOUCH_TOKENS) / (blockSize as usize);
    const touchedV = (touchedBytes << 5) / headBytes;
    for (let h: u32 = 0; h < numKvHeads; h++) {
      const kvHead = kvHeadStart + h;
      let k = blockAt + (((kvHead * headDim) as usize) << shift);
      let v = k + planeBytes;
      let stride = tokenBytes;
      if (isUnpacked) {
        unpack(k, tokenBytes, unpackedK, numTokens, headBytes, isF16);
        unpack(v, tokenBytes, unpackedV, numTokens, headBytes, isF16);
        k = unpackedK;
        v = unpackedV;
        stride = headBytes;
      }
      const qHeads = q + ((kvHead * group) as usize) * headBytes;
      const headRecords = records + ((h * group) as usize) * rowRecords;
      if (isUnpacked) {
        attend_many(
          qHeads, qStride, k, v, rows, group, position, first, numTokens, window, scale,
          headRecords, rowRecords, headBytes, scratch, scoreBytes,
        );
        continue;
      }
      for (let i: u32 = 0; i < rows; i++) {
        const start = start_in(position + i, first, window);
        const end = end_in(position + i, first, numTokens);
        if (start >= end) continue;
        const qRow = qHeads + (i as usize) * qStride;
        let record = headRecords + (i as usize) * recordBytes;
        const vStart = v + (start as usize) * stride;
        for (let g: u32 = 0; g < group; g += 4) {
          const at = qRow + (g as usize) * headBytes;
          const numHeads = min<u32>(4, group - g);
          const nextK = next && i == 0 && g == 0 ? next + (h as usize) * touchedBytes : 0;
          const nextV = nextK ? nextK + planeBytes : 0;
          if (isF16) scores_f16(numHeads, at, headBytes, k, stride, start, end, scratch, scoreBytes, nextK, touchedK, sink);
          else scores_f32(numHeads, at, headBytes, k, stride, start, end, scratch, scoreBytes);
          for (let j: u32 = 0; j < numHeads; j++) {
            const at = scratch + (j as usize) * scoreBytes;
            softmax(at, start, end, scoreScale, record + (j as usize) * rowRecords, headBytes);
            if (isSmall) multiply(at, at, (((end + 3) & ~3) as usize) << 2, TWO_112);
          }
          const weights = scratch + ((start as usize) << 2);
          const count = end - start;
          if (isF16) values_f16(numHeads, weights, scoreBytes, vStart, stride, count, record, rowRecords, headBytes, nextV, touchedV, sink);
          else values_f32(numHeads, weights, scoreBytes, vStart, stride, count, record, rowRecords, headBytes);
          record += (numHeads as usize) * rowRecords;
        }
      }
    }
  }
}

/** One unpacked block of one KV head for all queries of a tile, two at a time; records [group][rows]. */
function attend_many(
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

/** Tokens [start, end) of the block that begins at `first` are what a row sees of it. */
// @ts-ignore: decorator
@inline
function start_in(position: u32, first: u32, window: u32): u32 {
  const from = first_visible(position, window);
  return from > first ? from - first : 0;
}

// @ts-ignore: decorator
@inline
function end_in(position: u32, first: u32, numTokens: u32): u32 {
  return position < first ? 0 : min<u32>(numTokens, position - first + 1);
}

/** Blocks of a span. */
export function span_blocks(blockSize: u32): u32 {
  return max<u32>(1, SPAN / blockSize);
}

/** to[i] = from[i] · factor, whole vectors. */
// @ts-ignore: decorator
@inline
function multiply(from: usize, to: usize, bytes: usize, factor: f32): void {
  const factor4 = f32x4.splat(factor);
  for (let i: usize = 0; i < bytes; i += 16) v128.store(to + i, f32x4.mul(v128.load(from + i), factor4));
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
    for (const last = q + (headBytes & ~31); qa < last; qa += 32) {
      x = isF16 ? load4_f16_small(k0 + 0) : v128.load(k0, 0);
      y = isF16 ? load4_f16_small(k1 + 0) : v128.load(k1, 0);
      z = v128.load(qa, 0);
      a0 = madd(z, x, a0);
      a1 = madd(z, y, a1);
      if (heads > 1) {
        z = v128.load(qb, 0);
        b0 = madd(z, x, b0);
        b1 = madd(z, y, b1);
      }
      if (heads > 2) {
        z = v128.load(qc, 0);
        c0 = madd(z, x, c0);
        c1 = madd(z, y, c1);
      }
      if (heads > 3) {
        z = v128.load(qd, 0);
        d0 = madd(z, x, d0);
        d1 = madd(z, y, d1);
      }
      x = isF16 ? load4_f16_small(k0 + 8) : v128.load(k0, 16);
      y = isF16 ? load4_f16_small(k1 + 8) : v128.load(k1, 16);
      z = v128.load(qa, 16);
      a0 = madd(z, x, a0);
      a1 = madd(z, y, a1);
      if (heads > 1) {
        z = v128.load(qb, 16);
        b0 = madd(z, x, b0);
        b1 = madd(z, y, b1);
      }
      if (heads > 2) {
        z = v128.load(qc, 16);
        c0 = madd(z, x, c0);
        c1 = madd(z, y, c1);
      }
      if (heads > 3) {
        z = v128.load(qd, 16);
        d0 = madd(z, x, d0);
        d1 = madd(z, y, d1);
      }
      if (heads > 1) qb += 32;
      if (heads > 2) qc += 32;
      if (heads > 3) qd += 32;
      k0 += isF16 ? 16 : 32;
      k1 += isF16 ? 16 : 32;
    }
    if (headBytes & 16) {
      x = isF16 ? load4_f16_small(k0 + 0) : v128.load(k0, 0);
      y = isF16 ? load4_f16_small(k1 + 0) : v128.load(k1, 0);
      z = v128.load(qa, 0);
      a0 = madd(z, x, a0);
      a1 = madd(z, y, a1);
      if (heads > 1) {
        z = v128.load(qb, 0);
        b0 = madd(z, x, b0);
        b1 = madd(z, y, b1);
      }
      if (heads > 2) {
        z = v128.load(qc, 0);
        c0 = madd(z, x, c0);
        c1 = madd(z, y, c1);
      }
      if (heads > 3) {
        z = v128.load(qd, 0);
        d0 = madd(z, x, d0);
        d1 = madd(z, y, d1);
      }
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
 * Scores [start, end) of a query to weights e^(score · scale - max); what its record has so far is rescaled. Tokens around the ends,
 * up to whole vectors, get weight 0, so that a sum's lanes are the tokens' places in the block.
 */
function softmax(scores: usize, start: u32, end: u32, scale: f32, record: usize, headBytes: usize): void {
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

function values_f16(
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

function values_f32(
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

/** out[heads][8], outHeadBytes apart, += weights[heads] · V in registers, two tokens a turn; `bytes` is 16 when there are only four. */
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
  const hasTwo = bytes == 32;
  const second: usize = hasTwo ? 16 : 0;
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
    for (const pairs = last - 4; wa < pairs; wa += 8) {
      x = isF16 ? load4_f16_small(from) : v128.load(from);
      y = isF16 ? load4_f16_small(from + secondKv) : v128.load(from + secondKv);
      s = v128.load32_splat(wa);
      a0 = madd(s, x, a0);
      a1 = madd(s, y, a1);
      if (heads > 1) {
        s = v128.load32_splat(wb);
        b0 = madd(s, x, b0);
        b1 = madd(s, y, b1);
      }
      if (heads > 2) {
        s = v128.load32_splat(wc);
        c0 = madd(s, x, c0);
        c1 = madd(s, y, c1);
      }
      if (heads > 3) {
        s = v128.load32_splat(we);
        e0 = madd(s, x, e0);
        e1 = madd(s, y, e1);
      }
      const after = from + tokenBytes;
      x = isF16 ? load4_f16_small(after) : v128.load(after);
      y = isF16 ? load4_f16_small(after + secondKv) : v128.load(after + secondKv);
      s = v128.load32_splat(wa, 4);
      a0 = madd(s, x, a0);
      a1 = madd(s, y, a1);
      if (heads > 1) {
        s = v128.load32_splat(wb, 4);
        b0 = madd(s, x, b0);
        b1 = madd(s, y, b1);
      }
      if (heads > 2) {
        s = v128.load32_splat(wc, 4);
        c0 = madd(s, x, c0);
        c1 = madd(s, y, c1);
      }
      if (heads > 3) {
        s = v128.load32_splat(we, 4);
        e0 = madd(s, x, e0);
        e1 = madd(s, y, e1);
      }
      if (heads > 1) wb += 8;
      if (heads > 2) wc += 8;
      if (heads > 3) we += 8;
      from = after + tokenBytes;
    }
    if (wa < last) {
      x = isF16 ? load4_f16_small(from) : v128.load(from);
      y = isF16 ? load4_f16_small(from + secondKv) : v128.load(from + secondKv);
      s = v128.load32_splat(wa);
      a0 = madd(s, x, a0);
      a1 = madd(s, y, a1);
      if (heads > 1) {
        s = v128.load32_splat(wb);
        b0 = madd(s, x, b0);
        b1 = madd(s, y, b1);
      }
      if (heads > 2) {
        s = v128.load32_splat(wc);
        c0 = madd(s, x, c0);
        c1 = madd(s, y, c1);
      }
      if (heads > 3) {
        s = v128.load32_splat(we);
        e0 = madd(s, x, e0);
        e1 = madd(s, y, e1);
      }
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
