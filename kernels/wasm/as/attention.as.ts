/**
 * Paged causal attention: consecutive rows of one sequence, some KV heads with all their query heads.
 *
 *   Online softmax over spans of SPAN tokens. Each span starts with empty sums; its blocks ascend, with one rescaling per block, and
 *   so do the tokens of a block. The partial results of spans are then merged in order. A row's result depends on its absolute position only,
 *   never on the tile, the chunk or on which threads took which spans (E2). K and V are read after rounding to the KV dtype.
 *
 *   Few queries (a query is one head of one row), as in decode: f16 K and V are converted in registers, once for up to four heads,
 *   to 2^-112 times their values. In return queries are multiplied by 2^96 and weights by 2^112, and the scale of the scores by 2^16.
 *   Powers of two change no bit, as long as queries are below 2^32.
 *   Many queries, as in prefill: a block is unpacked into `scratch`, which fits the first-level cache, and serves all of them.
 *   Both paths add in the same order: a score in four lanes along head_dim, then (0 + 1) + (2 + 3); an output token by token.
 *
 *   partial result   result of one span for one query: [head_dim] f32 not yet divided by the sum, then running max and sum, 8 bytes unused
 *   scratch  see attention_parts.as.ts; then for attention_tile [heads][rows] partial results and [heads][rows][2] f32
 *   window   tokens that a row sees, its own included; 0: all
 *   sinks    merged before the first span: a score per head, whose weight joins the sum and nothing else
 *   head_dim and block_size are multiples of 4.
 */
import { AttentionParams, AttentionTile } from './attention_params.as';
import { attend_few } from './attention_few.as';
import { attend_many } from './attention_many.as';
import { first_visible, LOWEST, queries_at, query_bytes } from './attention_parts.as';
import { exp1, multiply } from './simd.as';

/** Queries per KV head and tile from which unpacking a block pays. */
const MANY: u32 = 9;
/** Tokens per span, rounded down to whole blocks, at least one block. Shorter spans balance threads better and cost more merging. */
export const SPAN: u32 = 128;

/** Computes the outputs of a tile's rows for KV heads [kvHeadStart, kvHeadEnd). */
export function attention_tile(
  params: AttentionParams,
  tile: AttentionTile,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  scratch: usize,
): void {
  const group = params.group;
  const blockSize = params.blockSize;
  const rows = tile.rows;
  const position = tile.position;
  const outStride = params.outStride;
  const out = params.out + (tile.row as usize) * outStride;
  const headBytes: usize = (params.headDim as usize) << 2;
  const partialBytes = headBytes + 16;
  const numKvHeads = kvHeadEnd - kvHeadStart;
  const numQueries = numKvHeads * group * rows;
  const partials = queries_at(scratch, blockSize, headBytes) + (numKvHeads as usize) * query_bytes(group * rows, headBytes);
  const totals = partials + (numQueries as usize) * partialBytes;
  const headStart = kvHeadStart * group;
  const numHeads = numKvHeads * group;

  for (let head: u32 = 0; head < numHeads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      memory.fill(out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes, 0, headBytes);
      begin_total(params, headStart + head, totals + (((head * rows + i) as usize) << 3));
    }
  }
  const last = position + rows - 1;
  const spanTokens = span_blocks(blockSize) * blockSize;
  for (let span = first_visible(position, params.window) / spanTokens; span * spanTokens <= last; span++) {
    attend_span(params, tile, kvHeadStart, kvHeadEnd, span, last / blockSize + 1, partials, scratch);
    for (let head: u32 = 0; head < numHeads; head++) {
      for (let i: u32 = 0; i < rows; i++) {
        const query = (head * rows + i) as usize;
        const to = out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes;
        merge(to, totals + (query << 3), partials + query * partialBytes, headBytes);
      }
    }
  }
  for (let head: u32 = 0; head < numHeads; head++) {
    for (let i: u32 = 0; i < rows; i++) {
      const sum = load<f32>(totals + (((head * rows + i) as usize) << 3), 4);
      const to = out + (i as usize) * outStride + ((headStart + head) as usize) * headBytes;
      multiply(to, to, headBytes, (1.0 as f32) / sum);
    }
  }
}

/**
 * Computes one row's partial results of one span, for KV heads [kvHeadStart, kvHeadEnd). {@link attention_merge} makes the output
 * from the partial results of all spans.
 */
export function attention_span(
  params: AttentionParams,
  tile: AttentionTile,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  span: u32,
  partials: usize,
  scratch: usize,
): void {
  const blockSize = params.blockSize;
  const blockEnd = min<u32>((span + 1) * span_blocks(blockSize), tile.position / blockSize + 1);
  attend_span(params, tile, kvHeadStart, kvHeadEnd, span, blockEnd, partials, scratch);
}

/**
 * Computes the output of one row's KV head from partial results [spans][heads of its group], in order. `total`: room for 8 bytes.
 */
export function attention_merge(
  params: AttentionParams,
  tile: AttentionTile,
  kvHead: u32,
  partials: usize,
  spans: u32,
  spanBytes: usize,
  total: usize,
): void {
  const headBytes: usize = (params.headDim as usize) << 2;
  let out = params.out + (tile.row as usize) * params.outStride + ((kvHead * params.group) as usize) * headBytes;
  for (let head: u32 = 0; head < params.group; head++) {
    memory.fill(out, 0, headBytes);
    begin_total(params, kvHead * params.group + head, total);
    let partial = partials + (head as usize) * (headBytes + 16);
    for (let span: u32 = 0; span < spans; span++) {
      merge(out, total, partial, headBytes);
      partial += spanBytes;
    }
    multiply(out, out, headBytes, (1.0 as f32) / load<f32>(total, 4));
    out += headBytes;
  }
}

/** Sets [max, sum] of a query before its first span: to those of the head's sink, which has no value, else to those of no token. */
// @ts-ignore: decorator
@inline
function begin_total(params: AttentionParams, head: u32, total: usize): void {
  const sinks = params.sinks;
  store<f32>(total, sinks ? load<f32>(sinks + ((head as usize) << 2)) : LOWEST);
  store<f32>(total, sinks ? (1 as f32) : (0 as f32), 4);
}

/** Adds a span's partial result to an output and its [max, sum]; a span that the row does not see changes nothing. */
export function merge(out: usize, total: usize, partial: usize, headBytes: usize): void {
  const sum = load<f32>(partial + headBytes, 4);
  if (sum == 0) return;
  const highest = load<f32>(partial + headBytes);
  const before = load<f32>(total);
  const highestNow = max<f32>(before, highest);
  const keep = exp1(before - highestNow);
  const take = exp1(highest - highestNow);
  store<f32>(total, highestNow);
  store<f32>(total, load<f32>(total, 4) * keep + sum * take, 4);
  const keep4 = f32x4.splat(keep);
  const take4 = f32x4.splat(take);
  for (let d: usize = 0; d < headBytes; d += 16) {
    v128.store(out + d, f32x4.add(f32x4.mul(v128.load(out + d), keep4), f32x4.mul(v128.load(partial + d), take4)));
  }
}

/**
 * Computes partial results [heads][rows] of one span. The block after each one is touched ahead when it is before `aheadEnd`: this
 * thread reads it next, here or in a later call.
 */
function attend_span(
  params: AttentionParams,
  tile: AttentionTile,
  kvHeadStart: u32,
  kvHeadEnd: u32,
  span: u32,
  aheadEnd: u32,
  partials: usize,
  scratch: usize,
): void {
  const rows = tile.rows;
  const position = tile.position;
  const group = params.group;
  const blockSize = params.blockSize;
  const headBytes: usize = (params.headDim as usize) << 2;
  const partialBytes = headBytes + 16;
  for (let i: u32 = 0; i < (kvHeadEnd - kvHeadStart) * group * rows; i++) {
    const partial = partials + (i as usize) * partialBytes;
    memory.fill(partial, 0, partialBytes);
    store<f32>(partial + headBytes, LOWEST);
  }
  const lastPosition = position + rows - 1;
  const spanBlocks = span_blocks(blockSize);
  const start = max<u32>(span * spanBlocks, first_visible(position, params.window) / blockSize);
  const end = min<u32>((span + 1) * spanBlocks, lastPosition / blockSize + 1);
  if (rows * group >= MANY) {
    attend_many(params, tile, kvHeadStart, kvHeadEnd, start, end, partials, scratch);
  } else {
    attend_few(params, tile, kvHeadStart, kvHeadEnd, start, end, aheadEnd, partials, scratch);
  }
}

/** Blocks of a span. */
export function span_blocks(blockSize: u32): u32 {
  return max<u32>(1, SPAN / blockSize);
}
