/**
 * The products `out[r, o] (+)= (x[r, :] · weight[o, :] (+ bias[o])) · scale`: four kernels with one contract, so that one
 * uniform and the same buffers serve whichever kernel a step's row count calls for.
 */
import type { KernelSpec } from './kernel.ts';

const contract = {
  uses: ['linear', 'gate', 'weight_rows'],
  params: {
    outputs: 'u32',
    first_output: 'u32',
    quads: 'u32',
    scales_per_output: 'u32',
    x_stride: 'u32',
    out_stride: 'u32',
    has_bias: 'u32',
    is_accumulating: 'u32',
    count_at: 'u32',
    grid_y: 'u32',
    half_outputs: 'u32',
    inverse_norm_width: 'f32',
    epsilon: 'f32',
    scale: 'f32',
    items_at: 'u32',
    first_expert: 'u32',
    num_experts: 'u32',
    order_at: 'u32',
    alpha: 'f32',
    limit: 'f32',
  },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    weight: { access: 'read', dtype: 'vec4u' },
    scales: { access: 'read', dtype: 'u32' },
    bias: { access: 'read', dtype: 'f32' },
    norm: { access: 'read', dtype: 'vec4f' },
    step: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'f32' },
  },
} as const;

const vectorConstants = {
  FORMAT: 0,
  ROWS: 4,
  LANES: 4,
  COLUMNS: 1,
  GATED: 0,
  NORMED: 0,
  UNROLLED: 1,
  EXPERTS: 0,
  PERMUTED: 0,
  WORKGROUP_SIZE: 128,
};

/** Few rows, any order of summation; needs subgroups. */
export const matvec = {
  name: 'matvec',
  ...contract,
  uses: [...contract.uses, 'few_rows'],
  constants: vectorConstants,
} as const satisfies KernelSpec;

/** Few rows, the order of {@link matmul}. */
export const matvecOrdered = {
  name: 'matvec_ordered',
  ...contract,
  uses: [...contract.uses, 'few_rows', 'row_scale', 'mean_scale'],
  constants: vectorConstants,
} as const satisfies KernelSpec;

/** Many rows; tiles of f32 or f16. */
export const matmul = {
  name: 'matmul',
  ...contract,
  constants: { FORMAT: 0, GATED: 0, IS_F16: 0, UNROLLED: 1, EXPERTS: 0, PERMUTED: 0 },
  aliases: { Element: 'f32' },
} as const satisfies KernelSpec;

/** Many rows, on matrix units. */
export const matmulSubgroupMatrix = {
  name: 'matmul_subgroup_matrix',
  ...contract,
  constants: {
    FORMAT: 0,
    GATED: 0,
    UNROLLED: 1,
    EXPERTS: 0,
    PERMUTED: 0,
    SUBGROUP_SIZE: 32,
    M: 16,
    N: 16,
    K: 16,
    ROWS_TILE: 128,
    OUTPUTS_TILE: 128,
    BUFFERS: 1,
    SECTIONED: 0,
  },
  aliases: { Element: 'f16' },
} as const satisfies KernelSpec;

/** Outputs and rows of one workgroup of matmul; rows of an item of a mixture whose products are tiled. */
export const MATMUL_TILE = 64;
/**
 * Outputs of one workgroup of matmul_subgroup_matrix, by the element type of its tiles, so that one buffer of tiles and the sums fit
 * 32 KiB.
 */
export const MATRIX_OUTPUTS = { f16: 128, f32: 64 } as const;
