/**
 * Attention of few queries to a block: K and V are converted in registers, once for up to four heads, and the lines of the next block
 * are touched on the way.
 */
import { compute_keys, unpack_v } from './attention_keys.as';
import { AttentionParams, AttentionTile } from './attention_params.as';
import {
  add_values,
  ahead_at,
  end_in,
  queries_at,
  softmax_of_four,
  spare_at,
  start_in,
  unpacked_at,
} from './attention_parts.as';
import { start_ahead, touch_ahead } from './touch_ahead.as';
import { cap_scores, load4_f16_small, madd, multiply, sums_of_4 } from './simd.as';

const TWO_96: f32 = 79228162514264337593543950336.0;
const TWO_16: f32 = 65536.0;
/** Tokens whose scores are computed between two bursts of touches. */
const TOUCH_TOKENS: u32 = 8;

/**
 * Attends to blocks [blockStart, blockEnd) for few queries of some KV heads, and updates partial results [heads][rows], which are
 * not yet divided. Blocks before `aheadEnd` are touched ahead.
 */
export function attend_few(
  params: AttentionParams,
  tile: AttentionTile,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  blockStart: u32,
  blockEnd: u32,
  aheadEnd: u32,
  partials: usize,
  scratch: usize,
): void {
  const rows = tile.rows;
  const position = tile.position;
  const kv = params.kv;
  const valueOffset = params.valueOffset;
  const valueTokenBytes = params.valueTokenBytes;
  const blockBytes = params.blockBytes;
  const blockTable = tile.blockTable;
  const kvHeads = params.kvHeads;
  const group = params.group;
  const headDim = params.headDim;
  const blockSize = params.blockSize;
  // Computed keys, and the values that they are computed from, are f32 in scratch.
  const isComputed = params.keyNorm != 0;
  const isStoredF16 = params.isF16;
  const isF16 = isComputed ? 0 : isStoredF16;
  const window = params.window;
  let qStride = params.qkvStride;
  let q = params.qkv + (tile.row as usize) * qStride;
  const headBytes: usize = (headDim as usize) << 2;
  const partialBytes = headBytes + 16;
  const rowPartials = (rows as usize) * partialBytes;
  const ahead = ahead_at(scratch, blockSize);
  const spare = spare_at(scratch, blockSize);
  const unpackedK = unpacked_at(scratch, blockSize, headBytes);
  memory.fill(spare, 0, headBytes + 16);
  const shift: usize = isStoredF16 ? 1 : 2;
  const tokenBytes = params.keyTokenBytes;
  const keyBytes = isComputed ? headBytes : tokenBytes;
  const valueBytes = isComputed ? headBytes : valueTokenBytes;
  const numKvHeads = kvHeadEnd - kvHeadStart;
  if (isF16) {
    const scaledQ = queries_at(scratch, blockSize, headBytes);
    const width = ((numKvHeads * group) as usize) * headBytes;
    for (let i: u32 = 0; i < rows; i++) {
      const from = q + (i as usize) * qStride + ((kvHeadStart * group) as usize) * headBytes;
      multiply(from, scaledQ + (i as usize) * width, width, TWO_96);
    }
    // `scaledQ` holds only this call's heads: the base moves back so that absolute head numbers index the copy.
    q = scaledQ - ((kvHeadStart * group) as usize) * headBytes;
    qStride = width;
  }
  // A lower bound on the touch_ahead calls of the loops below when a row sees the whole block, so that every line is touched.
  const numBursts = numKvHeads * ((blockSize + TOUCH_TOKENS - 1) / TOUCH_TOKENS + (headDim + 7) / 8);
  const cap = params.cap;
  const dotScale = isF16 ? params.scale * TWO_16 : params.scale;
  const scoreScale = cap > 0 ? (1.0 as f32) : dotScale;
  const lastPosition = position + rows - 1;
  for (let block = blockStart; block < blockEnd; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const blockAt = kv + (load<u32>(blockTable + ((block as usize) << 2)) as usize) * blockBytes;
    // A block is touched ahead only when all KV heads are computed: its lines hold every head's K and V.
    const next: usize =
      numKvHeads < kvHeads || block + 1 >= aheadEnd
        ? 0
        : kv + (load<u32>(blockTable + (((block + 1) as usize) << 2)) as usize) * blockBytes;
    const nextTokens = min<u32>(blockSize, lastPosition + 1 - min<u32>(lastPosition, first + blockSize));
    start_ahead(ahead, next, tokenBytes * (nextTokens as usize), valueOffset, numBursts);
    for (let h: u32 = 0; h < numKvHeads; h++) {
      const kvHead = kvHeadStart + h;
      let k = blockAt + (((kvHead * headDim) as usize) << shift);
      let v = k + valueOffset;
      if (isComputed) {
        const values = unpackedK + (blockSize as usize) * headBytes;
        unpack_v(v, valueTokenBytes, values, numTokens, headBytes, isStoredF16);
        compute_keys(params, values, first, numTokens, unpackedK, 1);
        k = unpackedK;
        v = values;
      }
      const qHeads = q + ((kvHead * group) as usize) * headBytes;
      const headPartials = partials + ((h * group) as usize) * rowPartials;
      for (let i: u32 = 0; i < rows; i++) {
        const start = start_in(position + i, first, window);
        const end = end_in(position + i, first, numTokens);
        if (start >= end) continue;
        const qRow = qHeads + (i as usize) * qStride;
        let partial = headPartials + (i as usize) * partialBytes;
        const vStart = v + (start as usize) * valueBytes;
        for (let g: u32 = 0; g < group; g += 4) {
          const at = qRow + (g as usize) * headBytes;
          const numHeads = min<u32>(4, group - g);
          scores_of(numHeads, isF16, at, headBytes, k, keyBytes, start, end, scratch, ahead);
          const partial1 = numHeads > 1 ? partial + rowPartials : spare;
          const partial2 = numHeads > 2 ? partial1 + rowPartials : spare;
          const partial3 = numHeads > 3 ? partial2 + rowPartials : spare;
          if (cap > 0) {
            cap_scores(scratch + ((start as usize) << 4), scratch + ((end as usize) << 4), dotScale / cap, cap);
          }
          softmax_of_four(
            scratch, start, end, i32x4.splat(start), i32x4.splat(end), scoreScale, isF16,
            partial, partial1, partial2, partial3, headBytes,
          );
          values_of(
            numHeads, isF16, scratch + ((start as usize) << 4), scratch + ((end as usize) << 4), vStart, valueBytes,
            partial, partial1, partial2, partial3, headBytes, ahead,
          );
          partial += (numHeads as usize) * rowPartials;
        }
      }
    }
  }
}

/** Computes scores [tokens][4] of up to four heads, with a burst of touches before every TOUCH_TOKENS tokens. */
function scores_of(
  heads: u32,
  isF16: u32,
  q: usize,
  headBytes: usize,
  k: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  scores: usize,
  ahead: usize,
): void {
  for (let t = start; t < end; t += TOUCH_TOKENS) {
    const last = min<u32>(end, t + TOUCH_TOKENS);
    touch_ahead(ahead);
    if (isF16) {
      if (heads == 4) scores_of_2(4, 1, q, headBytes, k, tokenBytes, t, last, scores);
      else if (heads == 3) scores_of_2(3, 1, q, headBytes, k, tokenBytes, t, last, scores);
      else if (heads == 2) scores_of_2(2, 1, q, headBytes, k, tokenBytes, t, last, scores);
      else scores_of_2(1, 1, q, headBytes, k, tokenBytes, t, last, scores);
    } else {
      if (heads == 4) scores_of_2(4, 0, q, headBytes, k, tokenBytes, t, last, scores);
      else if (heads == 3) scores_of_2(3, 0, q, headBytes, k, tokenBytes, t, last, scores);
      else if (heads == 2) scores_of_2(2, 0, q, headBytes, k, tokenBytes, t, last, scores);
      else scores_of_2(1, 0, q, headBytes, k, tokenBytes, t, last, scores);
    }
  }
}

/**
 * Computes the scores of tokens [start, end), two per iteration. f16 K becomes 2^-112 times its value, in registers. `heads` and
 * `isF16` are compile-time constants.
 */
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
      const x = isF16 ? load4_f16_small(k0) : v128.load(k0);
      const y = isF16 ? load4_f16_small(k1) : v128.load(k1);
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
    // With an odd number of tokens, the last iteration also writes a score beyond the end, which is ignored.
    const at = scores + ((t as usize) << 4);
    v128.store(at, sums_of_4(a0, b0, c0, d0));
    v128.store(at, sums_of_4(a1, b1, c1, d1), 16);
  }
}

/** partial results[heads][head_dim] += weights · V. */
function values_of(
  heads: u32,
  isF16: u32,
  weights: usize,
  end: usize,
  v: usize,
  tokenBytes: usize,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
  headBytes: usize,
  ahead: usize,
): void {
  if (isF16) {
    if (heads == 4) add_values(4, 1, weights, end, v, tokenBytes, partial0, partial1, partial2, partial3, headBytes, ahead);
    else if (heads == 3) add_values(3, 1, weights, end, v, tokenBytes, partial0, partial1, partial2, 0, headBytes, ahead);
    else if (heads == 2) add_values(2, 1, weights, end, v, tokenBytes, partial0, partial1, 0, 0, headBytes, ahead);
    else add_values(1, 1, weights, end, v, tokenBytes, partial0, 0, 0, 0, headBytes, ahead);
  } else {
    if (heads == 4) add_values(4, 0, weights, end, v, tokenBytes, partial0, partial1, partial2, partial3, headBytes, ahead);
    else if (heads == 3) add_values(3, 0, weights, end, v, tokenBytes, partial0, partial1, partial2, 0, headBytes, ahead);
    else if (heads == 2) add_values(2, 0, weights, end, v, tokenBytes, partial0, partial1, 0, 0, headBytes, ahead);
    else add_values(1, 0, weights, end, v, tokenBytes, partial0, 0, 0, 0, headBytes, ahead);
  }
}
