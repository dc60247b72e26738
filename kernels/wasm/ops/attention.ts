/** Attention: tasks are tiles of rows and heads, or, where rows are few and contexts long, spans of tokens. */
import { DeviceError } from '../../device.ts';
import { kvTokenBytes } from '../../kv_layout.ts';
import { kvLayerOf } from '../../program.ts';
import { attentionTile, partialBytes, TILE_ROWS } from '../attention_spans.ts';
import { Control } from '../shared_step.ts';
import type { StepContext } from '../step_context.ts';
import { struct } from '../struct.ts';
import { AttentionTasks, headsAtOnce, MOST_MERGED_SPANS, spanBlocks } from '../task_split.ts';
import { operation } from './operation.ts';
import type { BoundOperation } from '../bound_operation.ts';

/** Rounds up to a multiple of four, because queries are packed four at a time. */
function inFours(count: number): number {
  return Math.ceil(count / 4) * 4;
}

/** Rounds up to a multiple of eight, because native kernels take eight tokens at a time. */
function inEights(count: number): number {
  return Math.ceil(count / 8) * 8;
}

interface Fields extends Readonly<Record<string, number>> {
  readonly kvHeads: number;
  readonly group: number;
  readonly headDim: number;
  readonly blockSize: number;
  readonly window: number;
  readonly tiles: number;
  readonly partials: number;
  readonly spanBytes: number;
  readonly maxSpans: number;
}

const noRope = { rotaryDim: 0, pairDistance: 0, cos: 0, sin: 0 };

/** Struct of the operation. */
export const attentionParams = struct('AttentionParams', {
  qkv: 'u32',
  qkvStride: 'u32',
  out: 'u32',
  outStride: 'u32',
  kv: 'u32',
  valueOffset: 'u32',
  keyTokenBytes: 'u32',
  valueTokenBytes: 'u32',
  blockBytes: 'u32',
  kvHeads: 'u32',
  group: 'u32',
  headDim: 'u32',
  blockSize: 'u32',
  isF16: 'u32',
  window: 'u32',
  scale: 'f32',
  cap: 'f32',
  sinks: 'u32',
  keyNorm: 'u32',
  cos: 'u32',
  sin: 'u32',
  rotaryDim: 'u32',
  pairDistance: 'u32',
});

/** The `attention` operation. Threads claim tasks: tiles, KV heads of tiles, or spans of tokens, see {@link AttentionTasks}. */
export const attention = operation('attention', {
  params: attentionParams,
  bind: (op, { options, regions, blockBytes, spanPartials, buffer, planes, rope, weight }) => {
    const { heads, kvHeads, headDim } = op;
    if (headDim % 4 !== 0)
      throw new DeviceError(`the wasm device needs head_dim to be a multiple of 4, this model has ${headDim}`);
    if (heads % kvHeads !== 0)
      throw new DeviceError(
        `the wasm device needs the heads to be a multiple of the KV heads, this model has ${heads} and ${kvHeads}`,
      );
    const [qkv, out] = [buffer(op.qkv), buffer(op.out)];
    const { rotaryDim, pairDistance, cos, sin } = op.keyRope === undefined ? noRope : rope(op.keyRope);
    if (rotaryDim % 8 !== 0 || pairDistance % 4 !== 0)
      throw new DeviceError(
        `the wasm device computes keys with rotated halves of a multiple of 4 values, not ${rotaryDim / 2}`,
      );
    return {
      qkv: qkv.at,
      qkvStride: qkv.stride,
      out: out.at,
      outStride: out.stride,
      ...planes({ ...op, layer: kvLayerOf(op) }),
      blockBytes,
      kvHeads,
      group: heads / kvHeads,
      headDim,
      blockSize: options.kv.blockSize,
      isF16: options.kv.dtype === 'f16' ? 1 : 0,
      window: op.window ?? 0,
      scale: op.scale,
      cap: op.cap ?? 0,
      sinks: op.sinks === undefined ? 0 : weight(op.sinks).at,
      keyNorm: op.keyNorm === undefined ? 0 : weight(op.keyNorm).at,
      cos,
      sin,
      rotaryDim,
      pairDistance,
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
    const { kvHeads, tiles } = fields;
    const headsPerTask = split === AttentionTasks.tiles ? kvHeads : 1;
    const tasksPerTile = kvHeads / headsPerTask;
    for (let task = step.nextTask(index); task < numTiles * tasksPerTile; task = step.nextTask(index)) {
      const head = (task % tasksPerTile) * headsPerTask;
      const tile = tiles + Math.floor(task / tasksPerTile) * attentionTile.bytes;
      step.kernels.attention_tile(params, tile, head, head + headsPerTask, step.scratch);
    }
  },
  cost: (op, { options: { kv } }, batch) => {
    const { heads, headDim, window = Infinity } = op;
    const tokenBytes = kvTokenBytes(kv, kvLayerOf(op));
    let [numSeen, numPairs] = [0, 0];
    for (const { tokens, start } of batch) {
      for (let i = 1; i <= tokens.length; i++) numPairs += Math.min(window, start + i);
      numSeen += Math.min(window + tokens.length - 1, start + tokens.length);
    }
    const isDecode = batch.every(({ tokens }) => tokens.length === 1);
    return { bytes: isDecode ? numSeen * tokenBytes : 0, flops: 4 * numPairs * heads * headDim, kind: 'f32' };
  },
  scratchBytes: (op, { options: { kv } }) => attentionScratchBytes(op, kv.blockSize),
});

/** Returns the bytes of scratch that a thread needs for attention of these heads. */
export function attentionScratchBytes(
  { heads, kvHeads, headDim }: { readonly heads: number; readonly kvHeads: number; readonly headDim: number },
  blockSize: number,
): number {
  // Queries of one KV head of a whole tile, or of all KV heads of one row.
  const group = heads / kvHeads;
  const numQueries = Math.max(inFours(TILE_ROWS * group), kvHeads * inFours(group));
  const headBytes = headDim * 4;
  // The layout is that of attention_parts.as.ts or, larger, of attention_parts.h: weights, a cache line or two, the spare, K and V, queries.
  return (
    64 * (blockSize + 4) +
    192 +
    headBytes +
    (blockSize + inEights(blockSize)) * headBytes +
    numQueries * (headBytes + partialBytes(headDim) + 16)
  );
}

/**
 * Computes the partial results of all spans of all tiles, which have one row each. The thread that finishes the last span of a row's heads
 * merges their partial results into the row's output; where these are many, all threads do, after a barrier.
 */
function attendSpans(step: StepContext, { index, params, fields }: BoundOperation<Fields>, numTiles: number): void {
  const { barrier, kernels, scratch, shared, u32 } = step;
  const { kvHeads, group, headDim, blockSize, window, tiles, partials, spanBytes, maxSpans } = fields;
  const spanTokens = spanBlocks(blockSize) * blockSize;
  const tileAt = (tile: number): number => tiles + tile * attentionTile.bytes;
  const partialsOf = (tile: number): number => partials + tile * maxSpans * spanBytes;
  const spansOf = (tile: number): [number, number] => {
    const position = u32[(tileAt(tile) + attentionTile.offsets.position) / 4]!;
    const first = window > 0 && position >= window ? position + 1 - window : 0;
    return [Math.floor(first / spanTokens), Math.floor(position / spanTokens) + 1];
  };
  let numSpans = 0;
  for (let tile = 0; tile < numTiles; tile++) numSpans += spansOf(tile)[1] - spansOf(tile)[0];
  const numHeads = headsAtOnce(numSpans, kvHeads, shared.numThreads);
  const groupBytes = group * partialBytes(headDim);
  const isMergedByLast = numHeads === 1 || numSpans <= MOST_MERGED_SPANS;
  const merge = (tile: number, head: number): void => {
    const [start, end] = spansOf(tile);
    const from = partialsOf(tile) + head * groupBytes;
    kernels.attention_merge(params, tileAt(tile), head, from, end - start, spanBytes, scratch);
  };
  let mine = step.nextTask(index);
  let task = 0;
  for (let tile = 0; tile < numTiles; tile++) {
    const [start, end] = spansOf(tile);
    for (let head = 0; head < kvHeads; head += numHeads) {
      for (let span = start; span < end; span++, task++) {
        if (task !== mine) continue;
        mine = step.nextTask(index);
        const to = partialsOf(tile) + (span - start) * spanBytes + head * groupBytes;
        kernels.attention_span(params, tileAt(tile), head, head + numHeads, span, to, scratch);
        if (!isMergedByLast || !step.isLast(tile * kvHeads + head, end - start)) continue;
        for (let own = head; own < head + numHeads; own++) merge(tile, own);
      }
    }
  }
  if (isMergedByLast) return;
  barrier.arrive();
  const [first, last] = step.share(numTiles * kvHeads);
  for (let part = first; part < last; part++) merge(Math.floor(part / kvHeads), part % kvHeads);
}
