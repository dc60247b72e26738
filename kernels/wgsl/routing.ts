/**
 * Layout of a mixture's routing on the device, rebuilt in each step: [0] the number of items; picks [expert slots], the experts of
 * each row, best first; order [expert slots], the row of each expert slot; items [3], rows of one expert that are multiplied together:
 * expert, first expert slot, number of expert slots. The number of rows in an item depends on the rows of the step: the host, which
 * knows them, chooses the kernel, and number_expert_slots.wgsl forms items by the same rule.
 */
import type { Program } from '../program.ts';
import { widestMixture } from '../program_kinds.ts';
import { MATMUL_TILE } from './linear_kernels.ts';

/** Expert slots of an expert, on average, from which tiles of {@link MATMUL_TILE} rows pay. */
const TILE_EXPERT_SLOTS = 12;
/** Columns of a matrix-vector kernel at most. */
const MAX_COLUMNS = 8;
const HEADER_WORDS = 4;

/** Word offsets of the parts of the routing buffer. */
export interface RoutingLayout {
  readonly picksAt: number;
  readonly orderAt: number;
  readonly itemsAt: number;
  /** Rows from which tiles are used. */
  readonly tiledRows: number;
}

/** Returns the layout of the routing buffer for steps of up to `maxRows` rows. */
export function routingLayout(maxRows: number, { experts, perToken }: ReturnType<typeof widestMixture>): RoutingLayout {
  const expertSlots = maxRows * perToken;
  return {
    picksAt: HEADER_WORDS,
    orderAt: HEADER_WORDS + expertSlots,
    itemsAt: HEADER_WORDS + 2 * expertSlots,
    tiledRows: Math.ceil((TILE_EXPERT_SLOTS * experts) / Math.max(1, perToken)),
  };
}

/** Returns the bytes of the routing buffer for steps of up to `maxRows` rows. */
export function routingBytes(program: Program, maxRows: number): number {
  const mixture = widestMixture(program);
  const { itemsAt } = routingLayout(maxRows, mixture);
  return 4 * (itemsAt + 3 * maxItems(maxRows * mixture.perToken, mixture.experts, 1));
}

/** Returns the upper bound on the items that the expert slots form, `atOnce` in each: the full items, and one partial item per expert. */
function maxItems(expertSlots: number, experts: number, atOnce: number): number {
  return Math.min(expertSlots, Math.floor(expertSlots / atOnce) + Math.min(experts, expertSlots));
}

/**
 * Returns how the expert slots of a step with so many rows are multiplied: `atOnce` per item, whether by tiles, and `most`, an upper
 * bound on the items. number_expert_slots.wgsl has the same rule.
 */
export function itemsOf(
  rows: number,
  { experts, perToken }: { readonly experts: number; readonly perToken: number },
  { tiledRows }: RoutingLayout,
): { readonly atOnce: number; readonly isTiled: boolean; readonly most: number } {
  const isTiled = rows >= tiledRows;
  let atOnce = isTiled ? MATMUL_TILE : 1;
  while (!isTiled && atOnce < Math.min(rows, MAX_COLUMNS)) atOnce *= 2;
  return { atOnce, isTiled, most: maxItems(rows * perToken, experts, atOnce) };
}
