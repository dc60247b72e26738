/** The attention of a step: tasks are tiles of rows and heads, or, where rows are few and contexts long, spans of tokens. */
import { Control, TILE_CELLS } from './step_cells.ts';
import type { StepContext } from './step_context.ts';
import { AttentionTasks, headsAtOnce, spanBlocks } from './task_split.ts';

export function attention(context: StepContext, at: number): void {
  const { control } = context.shared;
  const cells = context.cells(at);
  const tiles = (cells[14]! >>> 0) / 4;
  const numTiles = control[Control.numTiles]!;
  const kvHeads = cells[8]!;
  const split = control[Control.attention];
  if (split === AttentionTasks.spans) {
    attendSpans(context, at, tiles, numTiles);
    return;
  }
  const headsPerTask = split === AttentionTasks.tiles ? kvHeads : 1;
  const tasksPerTile = kvHeads / headsPerTask;
  for (let task = context.nextTask(at); task < numTiles * tasksPerTile; task = context.nextTask(at)) {
    const head = (task % tasksPerTile) * headsPerTask;
    const tile = tiles + Math.floor(task / tasksPerTile) * TILE_CELLS;
    attendTile(context, at, tile, head, head + headsPerTask);
  }
}

function attendTile(context: StepContext, at: number, tile: number, kvHeadStart: number, kvHeadEnd: number): void {
  const { kernels, scratch, u32 } = context;
  const cells = context.cells(at);
  const [q, qStride, out, outStride] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!];
  const rowStart = u32[tile]!;
  kernels.attention_tile(
    q + rowStart * qStride,
    qStride,
    out + rowStart * outStride,
    outStride,
    ...cells.subarray(5, 8),
    u32[tile + 3]!,
    u32[tile + 1]!,
    u32[tile + 2]!,
    kvHeadStart,
    kvHeadEnd,
    ...cells.subarray(8, 12),
    context.float(at, 12),
    cells[13]!,
    cells[15]!,
    scratch,
  );
}

/** Spans of all tiles, then, when they are there, what they make together. */
function attendSpans(context: StepContext, at: number, tiles: number, numTiles: number): void {
  const { barrier, kernels, scratch, shared, u32 } = context;
  const cells = context.cells(at);
  const [q, qStride, out, outStride] = [cells[1]!, cells[2]!, cells[3]!, cells[4]!];
  const [kvHeads, group, headDim, blockSize] = [cells[8]!, cells[9]!, cells[10]!, cells[11]!];
  const [window, records, spanBytes, maxSpans] = [cells[15]!, cells[16]!, cells[17]!, cells[18]!];
  const spanTokens = spanBlocks(blockSize) * blockSize;
  const recordsOf = (tile: number): number => records + tile * maxSpans * spanBytes;
  const spansOf = (tile: number): [number, number] => {
    const position = u32[tiles + tile * TILE_CELLS + 2]!;
    const first = window > 0 && position >= window ? position + 1 - window : 0;
    return [Math.floor(first / spanTokens), Math.floor(position / spanTokens) + 1];
  };
  let numSpans = 0;
  for (let tile = 0; tile < numTiles; tile++) numSpans += spansOf(tile)[1] - spansOf(tile)[0];
  const numHeads = headsAtOnce(numSpans, kvHeads, shared.numThreads);
  const recordBytes = spanBytes / (kvHeads * group);
  let mine = context.nextTask(at);
  let task = 0;
  for (let tile = 0; tile < numTiles; tile++) {
    const cell = tiles + tile * TILE_CELLS;
    const [start, end] = spansOf(tile);
    for (let head = 0; head < kvHeads; head += numHeads) {
      for (let span = start; span < end; span++, task++) {
        if (task !== mine) continue;
        mine = context.nextTask(at);
        kernels.attention_span(
          q + u32[cell]! * qStride,
          ...cells.subarray(5, 8),
          u32[cell + 3]!,
          u32[cell + 2]!,
          head,
          head + numHeads,
          ...cells.subarray(8, 12),
          context.float(at, 12),
          cells[13]!,
          window,
          span,
          recordsOf(tile) + (span - start) * spanBytes + head * group * recordBytes,
          scratch,
        );
      }
    }
  }
  barrier.arrive();
  const [first, last] = context.share(numTiles * kvHeads);
  for (let part = first; part < last; part++) {
    const [tile, head] = [Math.floor(part / kvHeads), (part % kvHeads) * group];
    const [start, end] = spansOf(tile);
    kernels.attention_merge(
      recordsOf(tile) + head * recordBytes,
      end - start,
      spanBytes,
      group,
      headDim,
      out + u32[tiles + tile * TILE_CELLS]! * outStride + head * headDim * 4,
      scratch,
    );
  }
}
