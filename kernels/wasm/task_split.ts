/**
 * Splits the work of an operation into tasks. A thread claims the next task when it has finished one, so a thread that started late or
 * shares its core does fewer. Tasks split outputs, never sums, so the split changes no bit (E2).
 */
import { ROW_BLOCK, SPAN } from './kernel_constants.ts';

const MIN_ROW_BLOCK = 24;
/** Bytes of the second-level cache that a block of rows may occupy. */
const ROW_BLOCK_BYTES = 1 << 20;
/** Rows that kernels take at a time. */
const ROW_UNIT = 4;
/** Panels that kernels take at a time. */
export const PANEL_UNIT = 4;
const TASKS_PER_THREAD = 8;

/** Split of a product into tasks: blocks of rows times ranges of panels. */
export interface ProductTasks {
  readonly numRows: number;
  readonly rowsPerTask: number;
  readonly panelsPerTask: number;
  readonly numPanelTasks: number;
  readonly numTasks: number;
}

/**
 * Splits a product into blocks of equally many rows times ranges of panels, which divide no `unit` panels. Tasks of one block of rows are
 * consecutive.
 */
export function productTasks(
  numRows: number,
  inner: number,
  numPanels: number,
  numThreads: number,
  unit = PANEL_UNIT,
): ProductTasks {
  const fitting = Math.floor(ROW_BLOCK_BYTES / (inner * 4) / MIN_ROW_BLOCK) * MIN_ROW_BLOCK;
  const numBlocks = Math.ceil(numRows / Math.min(ROW_BLOCK, Math.max(MIN_ROW_BLOCK, fitting)));
  const rowsPerTask = roundUp(numRows / Math.max(1, numBlocks), ROW_UNIT);
  const numRowTasks = Math.ceil(numRows / Math.max(1, rowsPerTask));
  const wanted = numThreads === 1 ? 1 : Math.ceil((TASKS_PER_THREAD * numThreads) / Math.max(1, numRowTasks));
  const panelsPerTask = evenPanels(numPanels, roundUp(numPanels / wanted, unit), numRowTasks, numThreads, unit);
  const numPanelTasks = Math.ceil(numPanels / panelsPerTask);
  return { numRows, rowsPerTask, panelsPerTask, numPanelTasks, numTasks: numRowTasks * numPanelTasks };
}

/**
 * Returns the panels per task, from half of to 1.5 times `wanted`, that give the busiest thread the fewest panels when all take
 * equally many tasks. On a tie `wanted` wins, then more panels.
 */
function evenPanels(numPanels: number, wanted: number, numRowTasks: number, numThreads: number, unit: number): number {
  const panelsAThread = (panels: number): number =>
    Math.ceil((numRowTasks * Math.ceil(numPanels / panels)) / numThreads) * panels;
  if (numThreads === 1) return wanted;
  let best = wanted;
  const consider = (panels: number): void => {
    if (panelsAThread(panels) < panelsAThread(best)) best = panels;
  };
  for (let panels = wanted; panels <= 1.5 * wanted; panels += unit) consider(panels);
  for (let panels = wanted; panels >= Math.max(unit, wanted / 2); panels -= unit) consider(panels);
  return best;
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

/** How threads split attention in a step. */
export const AttentionTasks = { tilesAndHeads: 0, tiles: 1, spans: 2 } as const;

/**
 * Returns how threads split attention. Tiles of several rows: by tile and KV head. Tiles of one row, as in decode: by tile, so that
 * blocks are read whole; with fewer than four tiles per thread by span, or by tile and KV head when more than `maxSplitTiles` tiles
 * would need span partial results.
 */
export function attentionTasks(numTiles: number, numRows: number, numThreads: number, maxSplitTiles: number): number {
  if (numTiles < numRows) return AttentionTasks.tilesAndHeads;
  if (numThreads === 1 || numTiles >= 4 * numThreads) return AttentionTasks.tiles;
  return numTiles <= maxSplitTiles ? AttentionTasks.spans : AttentionTasks.tilesAndHeads;
}

/** Spans per thread from which one task covers all KV heads of a span, so that blocks are read whole. */
const MIN_SPANS_PER_THREAD = 4;

/** Most spans of a step's rows that are merged without a barrier: then merging, which a single thread may do, takes less than to wait. */
export const MOST_MERGED_SPANS = 32;

/** Returns the number of blocks per span: SPAN tokens in whole blocks, at least one. */
export function spanBlocks(blockSize: number): number {
  return Math.max(1, Math.floor(SPAN / blockSize));
}

/**
 * Returns the KV heads per task: all of them when there are MIN_SPANS_PER_THREAD spans for each thread, so that blocks are read whole;
 * else 1.
 */
export function headsAtOnce(numSpans: number, kvHeads: number, numThreads: number): number {
  return numSpans >= MIN_SPANS_PER_THREAD * numThreads ? kvHeads : 1;
}
