/** Latent attention: tasks are tiles of rows times some heads, or, where rows are few and contexts long, spans of tokens times some heads. */
import { DeviceError } from '../../device.ts';
import { kvTokenBytes } from '../../kv_layout.ts';
import { latentPlane } from '../../kv_planes.ts';
import { attentionTile, partialBytes, TILE_ROWS } from '../attention_spans.ts';
import { Control } from '../shared_step.ts';
import type { StepContext } from '../step_context.ts';
import { struct } from '../struct.ts';
import { AttentionTasks, MOST_MERGED_SPANS, spanBlocks } from '../task_split.ts';
import type { BoundOperation } from '../bound_operation.ts';
import { operation } from './operation.ts';

/** Queries (rows times heads) of a task: they amortise the unpacking of a block, and their running sums stay in cache. */
const QUERIES = 64;
/** Queries that the kernels take at a time. */
const QUERY_UNIT = 4;
/** Tasks that each thread should have at least, so that all finish at about the same time. */
const TASKS_PER_THREAD = 2;

interface Fields extends Readonly<Record<string, number>> {
  readonly heads: number;
  readonly rank: number;
  readonly blockSize: number;
  readonly tiles: number;
  readonly partials: number;
  readonly spanBytes: number;
  readonly maxSpans: number;
}

/** The `latent_attention` operation. Threads claim tasks; how work is divided into them changes no bit. */
export const latentAttention = operation('latent_attention', {
  params: struct('LatentAttentionParams', {
    query: 'u32',
    queryStride: 'u32',
    out: 'u32',
    outStride: 'u32',
    kv: 'u32',
    tokenBytes: 'u32',
    blockBytes: 'u32',
    rank: 'u32',
    rotary: 'u32',
    blockSize: 'u32',
    isF16: 'u32',
    scale: 'f32',
  }),
  bind: (op, { options: { kv }, regions, blockBytes, spanPartials, buffer, planesAt }) => {
    const { heads, rank, rotary, scale } = op;
    if (rank % 4 !== 0 || rotary % 4 !== 0)
      throw new DeviceError(`latent attention needs multiples of 4 values, not ${rank} and ${rotary}`);
    const [query, out, plane] = [buffer(op.query), buffer(op.out), latentPlane(kv, op)];
    return {
      query: query.at,
      queryStride: query.stride,
      out: out.at,
      outStride: out.stride,
      kv: planesAt(op.layer) + plane.offset,
      tokenBytes: plane.tokenBytes,
      blockBytes,
      rank,
      rotary,
      scale,
      blockSize: kv.blockSize,
      isF16: kv.dtype === 'f16' ? 1 : 0,
      heads,
      tiles: regions.tiles,
      partials: spanPartials.at,
      spanBytes: spanPartials.spanBytes,
      maxSpans: spanPartials.maxSpans,
    };
  },
  run: (step, op) => {
    const numTiles = step.count(Control.numTiles);
    const split = step.count(Control.attention);
    if (split === AttentionTasks.spans) {
      attendSpans(step, op, numTiles);
      return;
    }
    const { index, params, fields } = op;
    const { heads, tiles } = fields;
    const rows = numTiles === step.count(Control.numRows) ? 1 : TILE_ROWS;
    const headsPerTask = headsOfTask(heads, rows, numTiles, step.shared.numThreads);
    const tasksPerTile = Math.ceil(heads / headsPerTask);
    for (let task = step.nextTask(index); task < numTiles * tasksPerTile; task = step.nextTask(index)) {
      const head = (task % tasksPerTile) * headsPerTask;
      const tile = tiles + Math.floor(task / tasksPerTile) * attentionTile.bytes;
      step.kernels.latent_tile(params, tile, head, Math.min(heads, head + headsPerTask), step.scratch);
    }
  },
  cost: ({ heads, rank, rotary, layer }, { options: { kv } }, batch) => {
    let [numSeen, numPairs] = [0, 0];
    for (const { tokens, start } of batch) {
      numPairs += tokens.length * start + (tokens.length * (tokens.length + 1)) / 2;
      numSeen += start + tokens.length;
    }
    const isDecode = batch.every(({ tokens }) => tokens.length === 1);
    return {
      bytes: isDecode ? numSeen * kvTokenBytes(kv, layer) : 0,
      flops: 2 * numPairs * heads * (2 * rank + rotary),
      kind: 'f32',
    };
  },
  scratchBytes: ({ heads, rank, rotary }, { options: { kv } }) => {
    const keyBytes = (rank + rotary) * 4;
    const mostHeads = headsOfTask(heads, 1, Infinity, 1);
    const numQueries = Math.max(QUERIES, TILE_ROWS * headsOfTask(heads, TILE_ROWS, Infinity, 1), mostHeads);
    return (
      16 * (kv.blockSize + 4) +
      partialBytes(rank) +
      kv.blockSize * keyBytes +
      (numQueries + QUERY_UNIT) * (keyBytes + partialBytes(rank) + 8)
    );
  },
});

/**
 * Returns the heads of a task: as many as make QUERIES queries with its rows, in whole units of the kernels, and fewer where the
 * threads would have less than TASKS_PER_THREAD tasks each, of which there are `count` for each part of the heads.
 */
function headsOfTask(heads: number, rows: number, count: number, numThreads: number): number {
  const inUnits = (wanted: number): number => Math.max(1, Math.ceil(wanted / QUERY_UNIT)) * QUERY_UNIT;
  const most = Math.min(inUnits(heads), inUnits(QUERIES / rows));
  const parts = Math.ceil((TASKS_PER_THREAD * numThreads) / count);
  return Math.min(most, inUnits(heads / parts));
}

/**
 * Computes the partial results of all spans of all tiles, which have one row each. The thread that finishes the last span of some heads
 * merges them; where spans are many, all threads do, after a barrier.
 */
function attendSpans(step: StepContext, { index, params, fields }: BoundOperation<Fields>, numTiles: number): void {
  const { barrier, kernels, scratch, shared, u32 } = step;
  const { heads, rank, blockSize, tiles, partials, spanBytes, maxSpans } = fields;
  const spanTokens = spanBlocks(blockSize) * blockSize;
  const tileAt = (tile: number): number => tiles + tile * attentionTile.bytes;
  const partialsOf = (tile: number, head: number): number =>
    partials + tile * maxSpans * spanBytes + head * partialBytes(rank);
  const spansOf = (tile: number): number =>
    Math.floor(u32[(tileAt(tile) + attentionTile.offsets.position) / 4]! / spanTokens) + 1;
  let numSpans = 0;
  for (let tile = 0; tile < numTiles; tile++) numSpans += spansOf(tile);
  const headsPerTask = headsOfTask(heads, 1, numSpans, shared.numThreads);
  const isMergedByLast = numSpans <= MOST_MERGED_SPANS;
  const merge = (tile: number, head: number): void => {
    kernels.latent_merge(params, tileAt(tile), head, partialsOf(tile, head), spansOf(tile), spanBytes, scratch);
  };
  let mine = step.nextTask(index);
  let task = 0;
  for (let tile = 0; tile < numTiles; tile++) {
    const end = spansOf(tile);
    for (let head = 0; head < heads; head += headsPerTask) {
      for (let span = 0; span < end; span++, task++) {
        if (task !== mine) continue;
        mine = step.nextTask(index);
        const to = partialsOf(tile, head) + span * spanBytes;
        const headEnd = Math.min(heads, head + headsPerTask);
        kernels.latent_span(params, tileAt(tile), head, headEnd, span, to, scratch);
        if (!isMergedByLast || !step.isLast(tile * heads + head, end)) continue;
        for (let own = head; own < headEnd; own++) merge(tile, own);
      }
    }
  }
  if (isMergedByLast) return;
  barrier.arrive();
  const [first, last] = step.share(numTiles * heads);
  for (let part = first; part < last; part++) merge(Math.floor(part / heads), part % heads);
}
