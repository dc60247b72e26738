/**
 * Chooses the kernel for each product from what the adapter offers and what the kernel set promises.
 *
 *   deterministic  matvec_ordered for few rows, matmul over f32 tiles: one order of summation for every row count (E2)
 *   fast           matvec (subgroups), matmul on subgroup matrices, else over f16 tiles; judged by tolerance
 *   matrices       subgroup matrices for every row count, sums of 1,024 inputs added in order (E2); x and weights as f16. Where a
 *                  device has none, or a row's bits there depend on the rows next to it, the deterministic set is used instead
 *
 * Where an adapter lacks what a fast kernel needs, the deterministic kernel is used instead.
 */
import type { Gate } from '../program.ts';
import type { WeightFormat } from '../weights/weight_format.ts';
import type { KernelSpec, Specialisation } from './kernel.ts';
import { MATMUL_TILE, matmul, matmulSubgroupMatrix, MATRIX_OUTPUTS, matvec, matvecOrdered } from './linear_kernels.ts';
import type { MatrixUse } from './matrix_units.ts';

/** Names of the kernel sets, as the configuration spells them. */
export const kernelSets = ['deterministic', 'fast', 'matrices'] as const;
/** Set of kernels that a device computes products with. */
export type KernelSet = (typeof kernelSets)[number];

/**
 * Rows up to here go through a matrix-vector kernel, eight columns at a time; beyond, tiles of 64 rows pay. On a GPU a tile for fewer
 * rows leaves too few workgroups to hide its loads, and the columns' second read of the weights comes from the cache.
 */
const MATVEC_MAX_ROWS = { hardware: 64, software: 16 };
/**
 * Rows of a matrix tile (32, 64 or 128) for steps of up to `upTo` rows: small tiles where a step has few rows, so that there are more
 * workgroups.
 */
const MATRIX_TILES: readonly { readonly upTo: number; readonly rows: number }[] = [
  { upTo: 64, rows: 32 },
  { upTo: Infinity, rows: 128 },
];
/**
 * Tiles used where tiles with more rows cost too much: sums in sections take registers, f32 takes workgroup memory, and a software
 * driver takes seconds to compile them.
 */
const NARROW_MATRIX_TILES: typeof MATRIX_TILES = [{ upTo: Infinity, rows: 32 }];
/** Two buffers of 128 × 128 × 32 in f16 take this much workgroup memory, with the sums. */
const TWO_BUFFERS_BYTES = 49_152;
/** Columns that a matrix-vector workgroup keeps in registers. */
const COLUMNS = [1, 2, 4, 8] as const;
/**
 * Outputs that one thread of a matrix-vector workgroup computes; they share its loads of x. Weights with few outputs have one or two
 * per thread, so that there are enough workgroups to fill a large GPU (H200: 132 multiprocessors times eight of them).
 */
const ROWS_BY_OUTPUTS: readonly { readonly from: number; readonly rows: number }[] = [
  { from: 8_192, rows: 4 },
  { from: 2_048, rows: 2 },
  { from: 0, rows: 1 },
];
/** Maximum outputs of a thread by columns: every column takes registers for each output too. */
const MAX_ROWS: Readonly<Record<(typeof COLUMNS)[number], number>> = { 1: 4, 2: 4, 4: 2, 8: 1 };
/**
 * Neighbouring lanes that multiply the same inputs for different outputs in the fast set, by format: chosen so that 32 lanes' loads of
 * x are at most 1 KiB apart. A lane loads 16 bytes of a weight at a time: 4, 8, 16 or 32 inputs.
 */
const LANES: Readonly<Record<WeightFormat, number>> = { f32: 1, f16: 1, int8: 2, int4: 4, uint4: 4, mxfp4: 4, iq4: 4 };
/** Lanes that share inputs in the deterministic set, where a lane sums groups of 32 inputs in every format. */
const ORDERED_LANES = 4;

/** Kernel set and features of a device, which decide the kernel of each product. */
export interface Capabilities {
  readonly set: KernelSet;
  readonly hasSubgroups: boolean;
  readonly hasF16: boolean;
  /** Whether the adapter is a software driver: its compiler runs on the CPU and is slow on unrolled loops. */
  readonly isSoftware: boolean;
  readonly matrix: MatrixUse | undefined;
  /** Maximum bytes of memory of a workgroup. */
  readonly workgroupBytes: number;
  /** For benchmark sweeps: replaces the chosen shape of the kernels for few rows. */
  readonly vectorShape?: { readonly rows: number; readonly lanes: number } | undefined;
}

interface LinearUse {
  readonly format: WeightFormat;
  /** Gate that combines each pair (gate, up) of outputs into one; undefined when outputs do not come in pairs. */
  readonly gate: Gate['kind'] | undefined;
  /** Outputs of the weight's slice, or of one expert of a mixture. */
  readonly outputs: number;
  readonly hasExperts?: boolean;
  /** Whether the kernel finds the row of x of each expert slot through the routing, because x is not permuted. */
  readonly isPermuted?: boolean;
}

/** A kernel for a product, with the constants to compile it with. */
export interface LinearVariant {
  readonly spec: KernelSpec;
  readonly specialisation: Specialisation;
}

/** A variant for few rows; its grid depends on the outputs of one workgroup. */
export interface VectorVariant extends LinearVariant {
  readonly outputsPerWorkgroup: number;
}

/** A variant for many rows. */
export interface TiledVariant extends LinearVariant {
  /** Maximum rows of a step for this variant; a step uses the first variant with enough of them. */
  readonly upTo: number;
  /** Outputs and rows that one workgroup computes. */
  readonly tile: readonly [outputs: number, rows: number];
}

const GATES: Readonly<Record<Gate['kind'], number>> = { silu_mul: 1, gelu_mul: 2, clamped_swiglu: 3, mul: 4 };

const FORMATS: Readonly<Record<WeightFormat, number>> = {
  f32: 0,
  f16: 1,
  int8: 2,
  int4: 3,
  uint4: 4,
  mxfp4: 5,
  iq4: 6,
};

/** Returns the value of a kernel's constant GATED for this gate; 0 there means no gate. */
export function gateConstant(kind: Gate['kind']): number {
  return GATES[kind];
}

/** Returns the value of a kernel's constant FORMAT for this storage format. */
export function formatConstant(format: WeightFormat): number {
  return FORMATS[format];
}

/**
 * Returns the variants of one product: `byColumns` for few rows (empty where tiles serve every row count), `normed` for one row with
 * the norm before the product, and `many` for many rows.
 */
export function linearVariants(
  capabilities: Capabilities,
  { format, gate, outputs, hasExperts = false, isPermuted }: LinearUse,
  isNormed: boolean,
): {
  readonly byColumns: readonly (readonly [columns: number, variant: VectorVariant])[];
  readonly normed: VectorVariant | undefined;
  readonly many: readonly TiledVariant[];
} {
  const { set, hasSubgroups, hasF16, isSoftware, matrix, vectorShape: forced } = capabilities;
  const common = {
    FORMAT: FORMATS[format],
    GATED: gate === undefined ? 0 : gateConstant(gate),
    UNROLLED: isSoftware ? 0 : 1,
    EXPERTS: hasExperts ? 1 : 0,
    PERMUTED: isPermuted ? 1 : 0,
  };
  const isFast = set === 'fast';
  const vector = isFast && hasSubgroups ? matvec : matvecOrdered;
  const vectorVariant = (columns: (typeof COLUMNS)[number], normed: boolean): VectorVariant => {
    const chosen = isSoftware ? SOFTWARE_SHAPE : vectorShape(outputs, columns, vector === matvec && format);
    const { rows, lanes } = forced ?? chosen;
    return {
      spec: vector,
      specialisation: {
        constants: { ...common, COLUMNS: columns, ROWS: rows, LANES: lanes, NORMED: normed ? 1 : 0 },
      },
      outputsPerWorkgroup: rows * lanes,
    };
  };
  // In the matrices set a weight stored in f32 is multiplied in f32, not on matrix units.
  const isOnMatrices = set === 'matrices' && matrix !== undefined && format !== 'f32';
  const isF16 = isFast && hasF16;
  const tiled: TiledVariant = {
    spec: matmul,
    upTo: Infinity,
    tile: [MATMUL_TILE, MATMUL_TILE],
    specialisation: {
      constants: { ...common, IS_F16: isF16 ? 1 : 0 },
      aliases: { Element: isF16 ? 'f16' : 'f32' },
    },
  };
  return {
    byColumns: isOnMatrices ? [] : COLUMNS.map((columns) => [columns, vectorVariant(columns, false)]),
    normed: isNormed && normsOnTheWay(set) ? vectorVariant(1, true) : undefined,
    many: matrix && (isFast || isOnMatrices) ? matrixVariants(capabilities, matrix, common, hasExperts) : [tiled],
  };
}

/** Returns the variants for many rows on matrix units; `common` are the constants of every kernel for the product. */
function matrixVariants(
  { set, isSoftware, workgroupBytes }: Capabilities,
  { subgroupSize, isSizeAsked, M, N, K, componentType }: MatrixUse,
  common: Readonly<Record<string, number>>,
  hasExperts: boolean,
): TiledVariant[] {
  const isF16 = componentType === 'f16';
  const isSectioned = set === 'matrices';
  const fitting = isSectioned || isSoftware || !isF16 ? NARROW_MATRIX_TILES : MATRIX_TILES;
  // An item of a mixture has up to MATMUL_TILE rows.
  const tiles = hasExperts ? [{ upTo: Infinity, rows: MATMUL_TILE }] : fitting;
  const tileOutputs = MATRIX_OUTPUTS[isF16 ? 'f16' : 'f32'];
  // With several subgroup sizes (AMD), two buffers leave room for fewer workgroups at a time, which costs more than the barrier
  // they save.
  const buffers = isF16 && workgroupBytes >= TWO_BUFFERS_BYTES && !isSizeAsked ? 2 : 1;
  return tiles.map(({ upTo, rows }) => ({
    spec: matmulSubgroupMatrix,
    upTo,
    tile: [tileOutputs, rows],
    specialisation: {
      constants: {
        ...common,
        SUBGROUP_SIZE: subgroupSize,
        M,
        N,
        K,
        ROWS_TILE: rows,
        OUTPUTS_TILE: tileOutputs,
        BUFFERS: buffers,
        SECTIONED: isSectioned ? 1 : 0,
      },
      aliases: { Element: componentType },
      isSubgroupSizeAsked: isSizeAsked,
    },
  }));
}

/** Whether the set's kernel for one row can apply the norm before the product. */
export function normsOnTheWay(set: KernelSet): boolean {
  return set !== 'matrices';
}

/** A software driver has few threads and pays for every workgroup. */
const SOFTWARE_SHAPE = { rows: 4, lanes: 1 };

/** Outputs of a thread, and lanes that share its inputs; `format` for the fast kernel, false for the ordered one. */
function vectorShape(
  outputs: number,
  columns: (typeof COLUMNS)[number],
  format: WeightFormat | false,
): { readonly rows: number; readonly lanes: number } {
  const fitting = ROWS_BY_OUTPUTS.find(({ from }) => outputs >= from)?.rows ?? 1;
  const rows = Math.min(fitting, MAX_ROWS[columns]);
  // The fast kernel's lanes are those of the smallest subgroup at most; eight columns of x are loaded once for twice as many outputs.
  const lanes = format ? LANES[format] : ORDERED_LANES * (columns === 8 ? 2 : 1);
  // A pair (gate, up) needs two outputs in one workgroup.
  return rows * lanes === 1 ? { rows: 2, lanes } : { rows, lanes };
}

/**
 * Returns the workgroup grid of a variant for few rows: x covers the rows, and the `numGroups` workgroups of its outputs are folded
 * over y and z, so that y is at most `gridY`.
 */
export function vectorGrid(
  numRows: number,
  columns: number,
  numGroups: number,
  gridY: number,
): [number, number, number] {
  return [Math.ceil(numRows / columns), Math.min(numGroups, gridY), Math.ceil(numGroups / gridY)];
}

/** Returns the workgroup grid of a tiled kernel: [outputs, rows, 1] in tiles, rounded up. */
export function tiledGrid(
  numRows: number,
  outputs: number,
  [tileOutputs, tileRows]: TiledVariant['tile'],
): [number, number, number] {
  return [Math.ceil(outputs / tileOutputs), Math.ceil(numRows / tileRows), 1];
}

/**
 * Returns the columns of the matrix-vector kernel for a step of `numRows` rows, or undefined where tiles are faster. With matrix
 * units, the fast set uses tiles for more rows than one workgroup has columns.
 */
export function columnsFor(numRows: number, { set, isSoftware, matrix }: Capabilities): number | undefined {
  const most = COLUMNS[COLUMNS.length - 1]!;
  const limit = set === 'fast' && matrix ? most : MATVEC_MAX_ROWS[isSoftware ? 'software' : 'hardware'];
  if (numRows > limit) return undefined;
  return COLUMNS.find((columns) => columns >= numRows) ?? most;
}
