/**
 * How attention is split into work items for the device. The bits depend on the tokens of a tile and of a split, and on no other
 * choice made here (E2).
 */
import { DeviceError, type LoadOptions } from '../device.ts';
import { kvValueBytes } from '../kv_layout.ts';
import type { KvDtype, OperationOf, Program } from '../program.ts';

/** Tokens of a split: in a decode step the splits of a long sequence go to different workgroups. Shorter splits cost more merging. */
export const SPLIT_TOKENS = 128;
const MAX_PARTIALS = 16_384;
const MAX_PARTIAL_BYTES = 128 << 20;
/**
 * Workgroups that fill a large GPU (H200: 132 multiprocessors times four), and for a software driver those that fill this machine's
 * cores.
 */
const FULL_WORKGROUPS = 528;
const SOFTWARE_WORKGROUPS = 8;
const K_TILE_BYTES = 8_448;

/** Queries (rows times heads) of a workgroup of latent attention: what its threads have registers for with a rank of 512. */
const LATENT_QUERIES = 16;
/** Workgroup memory for the tokens of a tile of latent attention, with which scores and weights fit into 32 KiB. */
const LATENT_TILE_BYTES = 20_480;

/** Heads that determine how a layer's attention is split. */
type AttentionLayer = Pick<OperationOf<'attention'>, 'heads' | 'kvHeads' | 'headDim' | 'window'> & {
  /** Rows of an item, where it is not {@link rowsPerItem}. */
  readonly rows?: number;
};

/** Returns latent attention as the split sees it: ranges of heads in workgroups of their own, whose outputs have `rank` values. */
function asGrouped({ heads, rank }: OperationOf<'latent_attention'>): AttentionLayer {
  const rows = latentRows(heads);
  return { heads, kvHeads: Math.ceil(heads / latentHeadsAtOnce(heads, rows)), headDim: rank, rows };
}

/** Returns the rows of an item of latent attention: several where a workgroup has room for more queries than there are heads. */
export function latentRows(heads: number): number {
  return Math.max(1, Math.floor(LATENT_QUERIES / heads));
}

/** Returns the heads that one workgroup of latent attention takes, whose items have `rows` rows: all workgroups about as many. */
export function latentHeadsAtOnce(heads: number, rows: number): number {
  const most = Math.max(1, Math.floor(LATENT_QUERIES / rows));
  return Math.ceil(heads / Math.ceil(heads / most));
}

/** Returns the tokens of a tile of latent attention, a divisor of a split. `width`: values of a token. */
export function latentTokens(width: number, kvDtype: KvDtype): number {
  const perToken = width * kvValueBytes(kvDtype) + 4;
  return [16, 8, 4].find((tokens) => tokens * perToken <= LATENT_TILE_BYTES) ?? 2;
}

/** How attention is split into items, the same for all layers of a program, so that a step's items are made once. */
export interface AttentionTiling {
  /** Rows of one prefill item. */
  readonly tileRows: number;
  /** Items of several rows are split too while a step has fewer than this: enough workgroups to fill the device. */
  readonly splitBelowItems: number;
  /** Partials that a step may have; a sequence beyond takes all its splits in one workgroup: slow, and the same bits. */
  readonly maxPartials: number;
  /** Values of a partial, and number of its heads, which have a pair (highest, sum) each. */
  readonly partialValues: number;
  readonly partialHeads: number;
  /** The window that every attention layer has, or 0: items skip only what no layer sees. */
  readonly window: number;
}

/**
 * Returns how a program's attention is split into work items, or undefined for a program without attention. @throws DeviceError for
 * shapes that the kernels do not support.
 */
export function attentionTiling(
  { operations }: Program,
  options: LoadOptions,
  isSoftware: boolean,
): AttentionTiling | undefined {
  const layers = operations.flatMap((op): AttentionLayer[] => {
    if (op.kind === 'attention') return [op];
    return op.kind === 'latent_attention' ? [asGrouped(op)] : [];
  });
  if (layers.length === 0) return undefined;
  for (const { headDim } of layers) {
    if (headDim % 4 !== 0) {
      throw new DeviceError(`the webgpu device needs head_dim to be a multiple of 4, this model has ${headDim}`);
    }
  }
  const group = Math.max(...layers.map(({ heads, kvHeads }) => heads / kvHeads));
  const kvHeads = Math.min(...layers.map((layer) => layer.kvHeads));
  const partialValues = Math.max(...layers.map(({ heads, headDim }) => heads * headDim));
  const partialHeads = Math.max(...layers.map(({ heads }) => heads));
  const tileRows = Math.min(
    ...layers.map(({ rows }) => rows ?? Infinity),
    rowsPerItem(Math.max(...layers.map(({ headDim }) => headDim)), group),
  );
  const splitBelowItems = Math.ceil((isSoftware ? SOFTWARE_WORKGROUPS : FULL_WORKGROUPS) / kvHeads);
  const { maxSamples, maxRows, maxBlocksPerSequence, kv } = options;
  const splitsPerRow = Math.ceil((maxBlocksPerSequence * kv.blockSize) / SPLIT_TOKENS);
  const numRows = Math.max(maxSamples, Math.min(maxRows, tileRows * splitBelowItems));
  const fitting = Math.floor(MAX_PARTIAL_BYTES / ((partialValues + 2 * partialHeads) * 4));
  const windows = new Set(layers.map(({ window = 0 }) => window));
  const [window = 0] = windows;
  return {
    tileRows,
    splitBelowItems,
    partialValues,
    partialHeads,
    maxPartials: Math.min(MAX_PARTIALS, fitting, numRows * splitsPerRow),
    window: windows.size === 1 ? window : 0,
  };
}

/**
 * Returns the rows of a prefill item: few where the query heads per KV head are many or heads are wide, because a thread keeps two
 * copies of its outputs in registers.
 */
export function rowsPerItem(headDim: number, group: number): number {
  return Math.max(1, Math.floor((headDim > 128 ? 16 : 32) / group));
}

/** Tokens of a K tile: as many as leave workgroup memory for the rest, a divisor of a split. */
export function tileTokens(headDim: number, kvDtype: KvDtype): number {
  const perToken = headDim * kvValueBytes(kvDtype) + 4;
  return [32, 16, 8].find((tokens) => tokens * perToken <= K_TILE_BYTES) ?? 4;
}
