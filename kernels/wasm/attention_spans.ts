/** Tiles of rows that attend together, and the partial results of spans of tokens, for every kind of attention. */
import type { LoadOptions } from '../device.ts';
import type { Program } from '../program.ts';
import { struct } from './struct.ts';
import { spanBlocks } from './task_split.ts';

/** Rows that share one unpacking of a block; 16 rows amortise it and keep the running sums in cache. */
export const TILE_ROWS = 16;

/** Consecutive rows of one sequence. `blockTable`: byte offset of the sequence's block table. */
export const attentionTile = struct('AttentionTile', { row: 'u32', rows: 'u32', position: 'u32', blockTable: 'u32' });

/** Bytes of a partial result: the attention of one query over one span. */
export function partialBytes(headDim: number): number {
  return headDim * 4 + 16;
}

/** Most bytes of the region for partial results of spans, [tiles][spans][heads]. */
const MAX_PARTIAL_BYTES = 32 << 20;

/** Room for the partial results of spans, used when several threads attend for one row. */
export interface SpanPartials {
  /** Bytes of one span's partial results, all heads together. */
  readonly spanBytes: number;
  readonly maxSpans: number;
  readonly maxTiles: number;
}

/**
 * Returns the room for partial results of spans. Layers attend one after the other and share it; all numbers are 0 when no spans
 * are split.
 */
export function spanPartialsOf({ operations }: Program, options: LoadOptions, numThreads: number): SpanPartials {
  const layers = operations.flatMap((op) => {
    if (op.kind === 'latent_attention') return [{ heads: op.heads, headDim: op.rank }];
    return op.kind === 'attention' ? [op] : [];
  });
  if (layers.length === 0 || numThreads === 1) return { spanBytes: 0, maxSpans: 0, maxTiles: 0 };
  const spanBytes = Math.max(...layers.map(({ heads, headDim }) => heads * partialBytes(headDim)));
  const maxSpans = Math.ceil(options.maxBlocksPerSequence / spanBlocks(options.kv.blockSize));
  const maxTiles = Math.min(options.maxRows, 4 * numThreads, Math.floor(MAX_PARTIAL_BYTES / (maxSpans * spanBytes)));
  return { spanBytes, maxSpans, maxTiles };
}
