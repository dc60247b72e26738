/**
 * Attention of many queries to a block: the block is unpacked once, into the first-level cache, and serves four queries at a time,
 * each in one lane of the scores. Sums are added in the same order as for few queries: see attention.as.ts.
 *
 *   q        packed by {@link pack_queries}: [queries / 4][head_dim / 4][4 queries][4] f32, queries [rows][heads of the group]
 *   k        unpacked by {@link unpack_k}, or computed from v: [tokens / 2][head_dim / 4][2 tokens][4] f32
 *   v        unpacked by {@link unpack_v}: [tokens][head_dim] f32
 *   weights  scores, then weights [tokens][4 queries] f32
 */
import { compute_keys, unpack_v } from './attention_keys.as';
import { AttentionParams, AttentionTile } from './attention_params.as';
import {
  add_values,
  end_in,
  queries_at,
  query_bytes,
  softmax_of_four,
  spare_at,
  start_in,
  unpacked_at,
} from './attention_parts.as';
import { cap_scores, load4_f16, madd, sums_of_4 } from './simd.as';

/**
 * Attends to blocks [blockStart, blockEnd) for many queries of some KV heads, and updates partial results [heads][rows], which are
 * not yet divided.
 */
export function attend_many(
  params: AttentionParams,
  tile: AttentionTile,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  blockStart: u32,
  blockEnd: u32,
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
  const group = params.group;
  const headDim = params.headDim;
  const blockSize = params.blockSize;
  const isF16 = params.isF16;
  const window = params.window;
  const scale = params.scale;
  const cap = params.cap;
  const qStride = params.qkvStride;
  const q = params.qkv + (tile.row as usize) * qStride;
  const headBytes: usize = (headDim as usize) << 2;
  const shift: usize = isF16 ? 1 : 2;
  const tokenBytes = params.keyTokenBytes;
  const numKvHeads = kvHeadEnd - kvHeadStart;
  const rowPartials = (rows as usize) * (headBytes + 16);
  const spare = spare_at(scratch, blockSize);
  const unpackedK = unpacked_at(scratch, blockSize, headBytes);
  const unpackedV = unpackedK + (blockSize as usize) * headBytes;
  const packedQ = queries_at(scratch, blockSize, headBytes);
  const queryBytes = query_bytes(rows * group, headBytes);
  const lastPosition = position + rows - 1;
  for (let h: u32 = 0; h < numKvHeads; h++) {
    const from = q + (((kvHeadStart + h) * group) as usize) * headBytes;
    pack_queries(from, qStride, rows, group, headBytes, packedQ + (h as usize) * queryBytes);
  }
  memory.fill(spare, 0, headBytes + 16);
  for (let block = blockStart; block < blockEnd; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const blockAt = kv + (load<u32>(blockTable + ((block as usize) << 2)) as usize) * blockBytes;
    for (let h: u32 = 0; h < numKvHeads; h++) {
      const k = blockAt + ((((kvHeadStart + h) * headDim) as usize) << shift);
      unpack_v(k + valueOffset, valueTokenBytes, unpackedV, numTokens, headBytes, isF16);
      if (params.keyNorm) compute_keys(params, unpackedV, first, numTokens, unpackedK, 2);
      else unpack_k(k, tokenBytes, unpackedK, numTokens, headBytes, isF16);
      attend_block(
        packedQ + (h as usize) * queryBytes, unpackedK, unpackedV, rows, group, position, first, numTokens, window, scale, cap,
        partials + ((h * group) as usize) * rowPartials, rowPartials, spare, headBytes, scratch,
      );
    }
  }
}

/** Packs queries [rows][heads of the group] four at a time, as the header draws them; past the last one there are zeros. */
export function pack_queries(q: usize, qStride: usize, rows: u32, group: u32, headBytes: usize, to: usize): void {
  const numQueries = rows * group;
  if (numQueries & 3) memory.fill(to + ((numQueries & ~3) as usize) * headBytes, 0, headBytes << 2);
  let query: u32 = 0;
  for (let i: u32 = 0; i < rows; i++) {
    let from = q + (i as usize) * qStride;
    for (let g: u32 = 0; g < group; g++, query++) {
      let at = to + ((query & ~3) as usize) * headBytes + (((query & 3) as usize) << 4);
      for (const end = from + headBytes; from < end; from += 16) {
        v128.store(at, v128.load(from));
        at += 64;
      }
    }
  }
}

function unpack_k(from: usize, fromBytes: usize, to: usize, numTokens: u32, headBytes: usize, isF16: u32): void {
  for (let t: u32 = 0; t < numTokens; t++) {
    let at = to + ((t & ~1) as usize) * headBytes + (((t & 1) as usize) << 4);
    let d = from;
    for (const end = at + (headBytes << 1); at < end; at += 32) {
      v128.store(at, isF16 ? load4_f16(d) : v128.load(d));
      d += isF16 ? 8 : 16;
    }
    from += fromBytes;
  }
}

/**
 * Attends to one block of one KV head for all queries of a tile, and updates partial results [group][rows]; `rowPartials` is the
 * bytes from one head to the next. `spare`: a partial result whose contents are ignored.
 */
function attend_block(
  q: usize,
  k: usize,
  v: usize,
  rows: u32,
  group: u32,
  position: u32,
  first: u32,
  numTokens: u32,
  window: u32,
  scale: f32,
  cap: f32,
  partials: usize,
  rowPartials: usize,
  spare: usize,
  headBytes: usize,
  weights: usize,
): void {
  const partialBytes = headBytes + 16;
  const numQueries = rows * group;
  // Rows before the block see none of it.
  let query: u32 = position >= first ? 0 : ((first - position) * group) & ~3;
  let i = query / group;
  let g = query - i * group;
  for (; query < numQueries; query += 4) {
    let starts = i32x4.splat(0),
      ends = starts;
    // At least one of the four queries sees [start, end); all of them see [lastStart, firstEnd).
    let start = numTokens,
      end: u32 = 0,
      lastStart: u32 = 0,
      firstEnd = numTokens;
    let partial0 = spare,
      partial1 = spare,
      partial2 = spare,
      partial3 = spare;
    for (let lane: u32 = 0; lane < 4; lane++) {
      starts = i8x16.shuffle(starts, starts, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
      ends = i8x16.shuffle(ends, ends, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
      partial0 = partial1;
      partial1 = partial2;
      partial2 = partial3;
      partial3 = spare;
      if (query + lane < numQueries) {
        partial3 = partials + (g as usize) * rowPartials + (i as usize) * partialBytes;
        const from = start_in(position + i, first, window);
        const to = end_in(position + i, first, numTokens);
        starts = i32x4.replace_lane(starts, 3, from);
        ends = i32x4.replace_lane(ends, 3, to);
        start = min<u32>(start, from);
        end = max<u32>(end, to);
        lastStart = max<u32>(lastStart, from);
        firstEnd = min<u32>(firstEnd, to);
        if (++g == group) {
          g = 0;
          i++;
        }
      }
    }
    if (start >= end) continue;
    scores_of_four(q + (query as usize) * headBytes, headBytes, k, start & ~1, end, weights);
    if (cap > 0) cap_scores(weights + ((start as usize) << 4), weights + ((end as usize) << 4), scale / cap, cap);
    const scoreScale = cap > 0 ? (1.0 as f32) : scale;
    softmax_of_four(weights, start, end, starts, ends, scoreScale, 0, partial0, partial1, partial2, partial3, headBytes);
    if (lastStart >= firstEnd) lastStart = firstEnd = end;
    if (start < lastStart) {
      values_of_each(weights, v, headBytes, starts, ends, start, lastStart, partial0, partial1, partial2, partial3, headBytes);
    }
    if (lastStart < firstEnd) {
      const at = v + (lastStart as usize) * headBytes;
      const to = weights + ((firstEnd as usize) << 4);
      add_values(
        4, 0, weights + ((lastStart as usize) << 4), to, at, headBytes, partial0, partial1, partial2, partial3, headBytes, 0,
      );
    }
    if (firstEnd < end) {
      values_of_each(weights, v, headBytes, starts, ends, firstEnd, end, partial0, partial1, partial2, partial3, headBytes);
    }
  }
}

/**
 * Computes the scores of four queries for tokens [start, end), two per iteration. The last iteration may run one token beyond `end`,
 * within the block.
 */
function scores_of_four(q: usize, headBytes: usize, k: usize, start: u32, end: u32, scores: usize): void {
  k += (start as usize) * headBytes;
  for (let t = start; t < end; t += 2) {
    let a0 = f32x4.splat(0),
      a1 = a0,
      a2 = a0,
      a3 = a0,
      b0 = a0,
      b1 = a0,
      b2 = a0,
      b3 = a0;
    let at = q;
    for (const last = q + (headBytes << 2); at < last; at += 64) {
      const x = v128.load(k);
      const y = v128.load(k, 16);
      let z = v128.load(at);
      a0 = madd(z, x, a0);
      b0 = madd(z, y, b0);
      z = v128.load(at, 16);
      a1 = madd(z, x, a1);
      b1 = madd(z, y, b1);
      z = v128.load(at, 32);
      a2 = madd(z, x, a2);
      b2 = madd(z, y, b2);
      z = v128.load(at, 48);
      a3 = madd(z, x, a3);
      b3 = madd(z, y, b3);
      k += 32;
    }
    const to = scores + ((t as usize) << 4);
    v128.store(to, sums_of_4(a0, a1, a2, a3));
    v128.store(to, sums_of_4(b0, b1, b2, b3), 16);
  }
}

/**
 * partial results[4 queries][head_dim] += weights · V for the tokens of [first, last) that each query sees. Other tokens are
 * skipped, not multiplied by 0: their V may be NaN.
 */
// @ts-ignore: decorator
@inline
export function values_of_each(
  weights: usize,
  v: usize,
  tokenBytes: usize,
  starts: v128,
  ends: v128,
  first: u32,
  last: u32,
  partial0: usize,
  partial1: usize,
  partial2: usize,
  partial3: usize,
  headBytes: usize,
): void {
  starts = i32x4.max_u(starts, i32x4.splat(first));
  ends = i32x4.min_u(ends, i32x4.splat(last));
  values_of_one(
    weights, v, tokenBytes, i32x4.extract_lane(starts, 0), i32x4.extract_lane(ends, 0), partial0, headBytes,
  );
  values_of_one(
    weights + 4, v, tokenBytes, i32x4.extract_lane(starts, 1), i32x4.extract_lane(ends, 1), partial1, headBytes,
  );
  values_of_one(
    weights + 8, v, tokenBytes, i32x4.extract_lane(starts, 2), i32x4.extract_lane(ends, 2), partial2, headBytes,
  );
  values_of_one(
    weights + 12, v, tokenBytes, i32x4.extract_lane(starts, 3), i32x4.extract_lane(ends, 3), partial3, headBytes,
  );
}

/** partial result[head_dim] += weights · V of tokens [start, end) for one query, whose weights are 16 bytes apart. */
function values_of_one(
  weights: usize,
  v: usize,
  tokenBytes: usize,
  start: u32,
  end: u32,
  partial: usize,
  headBytes: usize,
): void {
  if (start >= end) return;
  const at = v + (start as usize) * tokenBytes;
  const to = weights + ((end as usize) << 4);
  add_values(1, 0, weights + ((start as usize) << 4), to, at, tokenBytes, partial, 0, 0, 0, headBytes, 0);
}
