/** How attention is cut into work for the device. The bits do not depend on it (E2), but for the tile of tokens and the split. */
import { DeviceError, type AttentionShape, type KvDtype, type LoadOptions, type Program } from '../device.ts';

/** Tokens of a split: so many workgroups share one long sequence's decode step; shorter ones cost more merging. */
export const SPLIT_TOKENS = 128;
const MAX_PARTIALS = 16_384;
const MAX_PARTIAL_BYTES = 128 << 20;
const QUERIES_PER_ITEM = 32;
/** Workgroups that fill a large GPU (H200: 132 multiprocessors times four), and this machine's cores. */
const FULL_WORKGROUPS = 528;
const SOFTWARE_WORKGROUPS = 8;
const K_TILE_BYTES = 8_448;

export interface AttentionTiling {
  /** Rows of one prefill item. */
  readonly tileRows: number;
  /** Items of several rows are split too while a step has fewer than this: enough workgroups to fill the device. */
  readonly splitBelowItems: number;
  /** Partials that a step may have; a sequence beyond takes all its splits in one workgroup: slow, and the same bits. */
  readonly maxPartials: number;
  /** Tokens of a K tile. */
  readonly tileTokens: number;
  /** The window that every attention layer has, or 0: items skip only what no layer sees. */
  readonly window: number;
}

/** @throws DeviceError for shapes that the kernels do not have. */
export function attentionTiling(
  shape: AttentionShape,
  operations: Program['operations'],
  options: LoadOptions,
  isSoftware: boolean,
): AttentionTiling {
  const { heads, kvHeads, headDim } = shape;
  if (headDim % 4 !== 0) {
    throw new DeviceError(`the webgpu device needs head_dim to be a multiple of 4, this model has ${headDim}`);
  }
  const tileRows = Math.max(1, Math.floor((QUERIES_PER_ITEM * kvHeads) / heads));
  const splitBelowItems = Math.ceil((isSoftware ? SOFTWARE_WORKGROUPS : FULL_WORKGROUPS) / kvHeads);
  const { maxSamples, maxRows, maxBlocksPerSequence, blockSize, kvDtype } = options;
  const splitsPerRow = Math.ceil((maxBlocksPerSequence * blockSize) / SPLIT_TOKENS);
  const numRows = Math.max(maxSamples, Math.min(maxRows, tileRows * splitBelowItems));
  // heads · (head_dim + 2) values each.
  const fitting = Math.floor(MAX_PARTIAL_BYTES / (heads * (headDim + 2) * 4));
  return {
    tileRows,
    splitBelowItems,
    maxPartials: Math.min(MAX_PARTIALS, fitting, numRows * splitsPerRow),
    tileTokens: tileTokens(headDim, kvDtype),
    window: windowOf(operations),
  };
}

/** Tokens of a K tile: as many as leave workgroup memory for the rest, a divisor of a split. */
function tileTokens(headDim: number, kvDtype: KvDtype): number {
  const perToken = headDim * (kvDtype === 'f16' ? 2 : 4) + 4;
  return [32, 16, 8].find((tokens) => tokens * perToken <= K_TILE_BYTES) ?? 4;
}

function windowOf(operations: Program['operations']): number {
  const windows = new Set(operations.flatMap((op) => (op.kind === 'attention' ? [op.window ?? 0] : [])));
  const [first = 0] = windows;
  return windows.size === 1 ? first : 0;
}
