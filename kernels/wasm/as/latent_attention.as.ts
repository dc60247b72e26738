/**
 * Latent attention in its absorbed form: one plane of [latent | rotated key] per token serves all heads, as key whole and as value in
 * its first `rank` values.
 *
 *   A block is unpacked once, to f32, and serves the queries of a task: some rows of one sequence times some heads, four at a time, one
 *   in each lane of the scores. The order of sums is that of attention.as.ts: a score in four lanes along the key, then (0 + 1) +
 *   (2 + 3); blocks ascending with one rescaling per block; spans of SPAN tokens merged in order. So a row's result depends neither on the rows
 *   and heads next to it nor on the threads (E2).
 *
 *   partial result   of one span for one query: [rank] f32 not yet divided by the sum, then running max and sum, 8 bytes unused
 *   scratch  scores [block_size + 4][4] f32, a spare partial result, [block_size][rank + rotary] f32: a block's tokens,
 *            [queries in whole fours][rank + rotary] f32: packed queries; then for latent_tile [heads][rows] partial results and [heads][rows][2] f32
 *   rank and rotary are multiples of 4.
 */
import { merge, span_blocks } from './attention.as';
import { unpack_v } from './attention_keys.as';
import { pack_queries, values_of_each } from './attention_many.as';
import { AttentionTile } from './attention_params.as';
import { add_values, end_in, LOWEST, query_bytes, softmax_of_four } from './attention_parts.as';
import { madd, multiply, sums_of_4 } from './simd.as';

/** query [rows][heads][rank + rotary] f32, out [rows][heads][rank] f32; kv: the layer's plane in block 0, blocks are blockBytes apart. */
// @ts-ignore: decorator
@unmanaged
export class LatentAttentionParams {
  query: usize;
  queryStride: usize;
  out: usize;
  outStride: usize;
  kv: usize;
  tokenBytes: usize;
  blockBytes: usize;
  rank: u32;
  rotary: u32;
  blockSize: u32;
  isF16: u32;
  scale: f32;
}

/** Returns the address in scratch of the spare partial result, into which unused lanes write. */
// @ts-ignore: decorator
@inline
function spare_at(scratch: usize, params: LatentAttentionParams): usize {
  return scratch + (((params.blockSize + 4) as usize) << 4);
}

// @ts-ignore: decorator
@inline
function tokens_at(scratch: usize, params: LatentAttentionParams): usize {
  return spare_at(scratch, params) + ((params.rank as usize) << 2) + 16;
}

// @ts-ignore: decorator
@inline
function key_bytes(params: LatentAttentionParams): usize {
  return ((params.rank + params.rotary) as usize) << 2;
}

// @ts-ignore: decorator
@inline
function queries_at(scratch: usize, params: LatentAttentionParams): usize {
  return tokens_at(scratch, params) + (params.blockSize as usize) * key_bytes(params);
}

/** Computes the outputs of a tile's rows for heads [headStart, headEnd). */
export function latent_tile(
  params: LatentAttentionParams,
  tile: AttentionTile,
  headStart: u32,
  headEnd: u32,
  scratch: usize,
): void {
  const rows = tile.rows;
  const heads = headEnd - headStart;
  const outStride = params.outStride;
  const rankBytes = (params.rank as usize) << 2;
  const partialBytes = rankBytes + 16;
  const numQueries = heads * rows;
  const out = params.out + (tile.row as usize) * outStride + (headStart as usize) * rankBytes;
  const partials = queries_at(scratch, params) + query_bytes(numQueries, key_bytes(params));
  const totals = partials + (numQueries as usize) * partialBytes;
  for (let head: u32 = 0; head < heads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      memory.fill(out + (i as usize) * outStride + (head as usize) * rankBytes, 0, rankBytes);
      const total = totals + (((head * rows + i) as usize) << 3);
      store<f32>(total, LOWEST);
      store<f32>(total, 0, 4);
    }
  }
  pack(params, tile, headStart, heads, scratch);
  const last = tile.position + rows - 1;
  const spanTokens = span_blocks(params.blockSize) * params.blockSize;
  for (let span: u32 = 0; span * spanTokens <= last; span++) {
    attend_span(params, tile, heads, span, partials, scratch);
    for (let head: u32 = 0; head < heads; head++) {
      for (let i: u32 = 0; i < rows; i++) {
        const query = (head * rows + i) as usize;
        const to = out + (i as usize) * outStride + (head as usize) * rankBytes;
        merge(to, totals + (query << 3), partials + query * partialBytes, rankBytes);
      }
    }
  }
  for (let head: u32 = 0; head < heads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      const sum = load<f32>(totals + (((head * rows + i) as usize) << 3), 4);
      const to = out + (i as usize) * outStride + (head as usize) * rankBytes;
      multiply(to, to, rankBytes, (1.0 as f32) / sum);
    }
  }
}

/** Computes one row's partial results of one span, [heads], for heads [headStart, headEnd). {@link latent_merge} makes the output. */
export function latent_span(
  params: LatentAttentionParams,
  tile: AttentionTile,
  headStart: u32,
  headEnd: u32,
  span: u32,
  partials: usize,
  scratch: usize,
): void {
  pack(params, tile, headStart, headEnd - headStart, scratch);
  attend_span(params, tile, headEnd - headStart, span, partials, scratch);
}

/** Computes the output of one row's head from its partial results of all spans, in order. `total`: room for 8 bytes. */
export function latent_merge(
  params: LatentAttentionParams,
  tile: AttentionTile,
  head: u32,
  partials: usize,
  spans: u32,
  spanBytes: usize,
  total: usize,
): void {
  const rankBytes = (params.rank as usize) << 2;
  const out = params.out + (tile.row as usize) * params.outStride + (head as usize) * rankBytes;
  memory.fill(out, 0, rankBytes);
  store<f32>(total, LOWEST);
  store<f32>(total, 0, 4);
  for (let span: u32 = 0; span < spans; span++) {
    merge(out, total, partials, rankBytes);
    partials += spanBytes;
  }
  multiply(out, out, rankBytes, (1.0 as f32) / load<f32>(total, 4));
}

function pack(params: LatentAttentionParams, tile: AttentionTile, headStart: u32, heads: u32, scratch: usize): void {
  const keyBytes = key_bytes(params);
  const from = params.query + (tile.row as usize) * params.queryStride + (headStart as usize) * keyBytes;
  pack_queries(from, params.queryStride, tile.rows, heads, keyBytes, queries_at(scratch, params));
  memory.fill(spare_at(scratch, params), 0, ((params.rank as usize) << 2) + 16);
}

/** Computes partial results [heads][rows] of one span for the packed queries. */
function attend_span(
  params: LatentAttentionParams,
  tile: AttentionTile,
  heads: u32,
  span: u32,
  partials: usize,
  scratch: usize,
): void {
  const rows = tile.rows;
  const blockSize = params.blockSize;
  const rankBytes = (params.rank as usize) << 2;
  const partialBytes = rankBytes + 16;
  for (let i: u32 = 0; i < heads * rows; i++) {
    const partial = partials + (i as usize) * partialBytes;
    memory.fill(partial, 0, partialBytes);
    store<f32>(partial + rankBytes, LOWEST);
  }
  const lastPosition = tile.position + rows - 1;
  const spanBlocks = span_blocks(blockSize);
  const end = min<u32>((span + 1) * spanBlocks, lastPosition / blockSize + 1);
  for (let block = span * spanBlocks; block < end; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const from = params.kv + (load<u32>(tile.blockTable + ((block as usize) << 2)) as usize) * params.blockBytes;
    unpack_v(from, params.tokenBytes, tokens_at(scratch, params), numTokens, key_bytes(params), params.isF16);
    attend_block(params, rows, heads, tile.position, first, numTokens, partials, scratch);
  }
}

/** Attends to one unpacked block for all packed queries, and updates partial results [heads][rows]. */
function attend_block(
  params: LatentAttentionParams,
  rows: u32,
  heads: u32,
  position: u32,
  first: u32,
  numTokens: u32,
  partials: usize,
  scores: usize,
): void {
  const keyBytes = key_bytes(params);
  const rankBytes = (params.rank as usize) << 2;
  const partialBytes = rankBytes + 16;
  const rowPartials = (rows as usize) * partialBytes;
  const spare = spare_at(scores, params);
  const tokens = tokens_at(scores, params);
  const q = queries_at(scores, params);
  const numQueries = rows * heads;
  // Rows before the block see none of it.
  let query: u32 = position >= first ? 0 : ((first - position) * heads) & ~3;
  let i = query / heads;
  let head = query - i * heads;
  for (; query < numQueries; query += 4) {
    let ends = i32x4.splat(0);
    // At least one of the four queries sees [0, end); all of them see [0, firstEnd).
    let end: u32 = 0,
      firstEnd = numTokens;
    let partial0 = spare,
      partial1 = spare,
      partial2 = spare,
      partial3 = spare;
    for (let lane: u32 = 0; lane < 4; lane++) {
      ends = i8x16.shuffle(ends, ends, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
      partial0 = partial1;
      partial1 = partial2;
      partial2 = partial3;
      partial3 = spare;
      if (query + lane < numQueries) {
        partial3 = partials + (head as usize) * rowPartials + (i as usize) * partialBytes;
        const to = end_in(position + i, first, numTokens);
        ends = i32x4.replace_lane(ends, 3, to);
        end = max<u32>(end, to);
        firstEnd = min<u32>(firstEnd, to);
        if (++head == heads) {
          head = 0;
          i++;
        }
      }
    }
    if (end == 0) continue;
    const starts = i32x4.splat(0);
    scores_of_four(q + (query as usize) * keyBytes, tokens, keyBytes, end, scores);
    softmax_of_four(scores, 0, end, starts, ends, params.scale, 0, partial0, partial1, partial2, partial3, rankBytes);
    if (firstEnd > 0) {
      const to = scores + ((firstEnd as usize) << 4);
      add_values(4, 0, scores, to, tokens, keyBytes, partial0, partial1, partial2, partial3, rankBytes, 0);
    }
    if (firstEnd < end) {
      values_of_each(
        scores, tokens, keyBytes, starts, ends, firstEnd, end, partial0, partial1, partial2, partial3, rankBytes,
      );
    }
  }
}

/**
 * Computes the scores [tokens][4] of four packed queries for tokens [0, end), two per iteration. The last iteration may run one token
 * beyond `end`, within the block.
 */
function scores_of_four(q: usize, tokens: usize, keyBytes: usize, end: u32, scores: usize): void {
  for (let t: u32 = 0; t < end; t += 2) {
    let a0 = f32x4.splat(0),
      a1 = a0,
      a2 = a0,
      a3 = a0,
      b0 = a0,
      b1 = a0,
      b2 = a0,
      b3 = a0;
    let at = q;
    let k = tokens + (t as usize) * keyBytes;
    for (const last = q + (keyBytes << 2); at < last; at += 64) {
      const x = v128.load(k);
      const y = v128.load(k + keyBytes);
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
      k += 16;
    }
    const to = scores + ((t as usize) << 4);
    v128.store(to, sums_of_4(a0, a1, a2, a3));
    v128.store(to, sums_of_4(b0, b1, b2, b3), 16);
  }
}
