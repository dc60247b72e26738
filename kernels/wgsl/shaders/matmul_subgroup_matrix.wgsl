// matmul_subgroup_matrix: matmul on the adapter's matrix units, where it has any; the `fast` and `matrices` sets
//
//   Buffers as in linear.wgsl. Element is what tiles hold, f16 or f32; sums are f32, because thousands of inputs in f16 sums lose several per cent.
//   M, N, K are the adapter's configuration: [M, K] times [K, N]; each divides 32, and 4 divides K.
//   SUBGROUP_SIZE is the adapter's only subgroup size, or the one that is requested where it has several.
//
// One workgroup of four subgroups per ROWS_TILE x OUTPUTS_TILE outputs: grid (outputs / OUTPUTS_TILE, rows / ROWS_TILE). With 128
// outputs a subgroup computes 64 x 64 (rows x outputs) of a tile of 128 rows, 32 x 64 of 64 rows, 32 x 32 of 32 rows; tiles of f32
// have 64 outputs. Each iteration stages a group of 32 inputs, scales applied, while those of the next group are loaded into
// registers. With BUFFERS 2 the staged inputs have two buffers in turn, which saves a barrier and takes 48 KiB. Sums go through
// workgroup memory, SLAB rows at a time, because the elements of a matrix cannot be accessed directly.
//
// SECTIONED 1 is for the `matrices` set: sums of 1,024 inputs begin at zero and are added up in f32 outside of the matrices, in order. A
// sum then depends only on its inputs and on what a matrix unit does within a section, for every number of rows (E2).
enable f16;
enable subgroups;
enable subgroup_size_control;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
alias Element = f16;

const SUBGROUP_SIZE: u32 = 32;
const M: u32 = 16;
const N: u32 = 16;
const K: u32 = 16;
const ROWS_TILE: u32 = 128;
const OUTPUTS_TILE: u32 = 128;
const BUFFERS: u32 = 1;
const SECTIONED: u32 = 0;

const THREADS = 4 * SUBGROUP_SIZE;
// Subgroups along the rows of a tile, and along its outputs.
const BY_ROWS = select(2u, 1u, ROWS_TILE == 32);
const BY_OUTPUTS = 4 / BY_ROWS;
const OWN_ROWS = ROWS_TILE / BY_ROWS;
const OWN_OUTPUTS = OUTPUTS_TILE / BY_OUTPUTS;
// Length of a tile's line in workgroup memory, in vectors of four: 32 inputs, and padding against bank conflicts. Matrix loads count
// offsets and strides in array elements, which are vectors of four.
const LINE_QUADS = 10u;
const SLAB = 16u;
const SLABS = ROWS_TILE / SLAB;
// Groups of a section, and sums of a slab that a thread adds up.
const SECTION = 32u;
const SLAB_SUMS = SLAB * OUTPUTS_TILE / THREADS;
// Vectors of x, and chunks of weights, that a thread loads in a step.
const X_LOADS = (ROWS_TILE * 8 + THREADS - 1) / THREADS;
const W_CHUNKS = OUTPUTS_TILE * CHUNKS_PER_GROUP;
const W_LOADS = (W_CHUNKS + THREADS - 1) / THREADS;

var<workgroup> x_tile: array<vec4<Element>, BUFFERS * ROWS_TILE * LINE_QUADS>;
var<workgroup> w_tile: array<vec4<Element>, BUFFERS * OUTPUTS_TILE * LINE_QUADS>;
var<workgroup> sums: array<f32, SLAB * OUTPUTS_TILE>;

@compute @workgroup_size(THREADS) @subgroup_size(SUBGROUP_SIZE)
fn matmul_subgroup_matrix(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
) {
  let rows = rows_of(workgroup.y, ROWS_TILE);
  let num_rows = rows.end;
  let first_row = rows.first;
  if (first_row >= num_rows) {
    return;
  }
  let first = workgroup.x * OUTPUTS_TILE;
  let stride = params.x_stride / 4;
  let chunks = params.quads / QUADS_PER_CHUNK;
  let groups = params.quads / 8;
  let row_at = subgroup / BY_OUTPUTS * OWN_ROWS;
  let output_at = subgroup % BY_OUTPUTS * OWN_OUTPUTS;

  // Positions of the thread's vectors of x and of its weights; past the last row or output, the last one again.
  var x_at: array<u32, X_LOADS>;
  for (var i = 0u; i < X_LOADS; i++) {
    let job = thread + i * THREADS;
    x_at[i] = row_of(min(first_row + job / 8, num_rows - 1)) * stride + job % 8;
  }
  var output: array<u32, W_LOADS>;
  for (var i = 0u; i < W_LOADS; i++) {
    output[i] = rows.base + min(first + (thread + i * THREADS) / CHUNKS_PER_GROUP, params.outputs - 1);
  }

  var x_next: array<vec4f, X_LOADS>;
  var w_next: array<vec4u, W_LOADS>;
  var scale_next: array<f32, W_LOADS>;
  var zero_next: array<f32, W_LOADS>;
  var totals: array<array<subgroup_matrix_result<f32, N, M>, OWN_OUTPUTS / N>, OWN_ROWS / M>;
  var added = array<f32, select(1u, SLABS * SLAB_SUMS, SECTIONED == 1)>();
  // Runs one iteration more than there are groups: the first one only loads, the last one only multiplies.
  for (var group = 0u; group <= groups; group++) {
    let buffer = select(0u, group & 1, BUFFERS == 2);
    if (group > 0) {
      if (BUFFERS == 1) {
        workgroupBarrier();
      }
      for (var i = 0u; i < X_LOADS; i++) {
        let job = thread + i * THREADS;
        if (ROWS_TILE * 8 % THREADS == 0 || job < ROWS_TILE * 8) {
          let v = clamp(x_next[i], vec4f(-65504.0), vec4f(65504.0));
          x_tile[(buffer * ROWS_TILE + job / 8) * LINE_QUADS + job % 8] = vec4<Element>(v);
        }
      }
      for (var i = 0u; i < W_LOADS; i++) {
        let job = thread + i * THREADS;
        if (W_CHUNKS % THREADS == 0 || job < W_CHUNKS) {
          let line = (buffer * OUTPUTS_TILE + job / CHUNKS_PER_GROUP) * LINE_QUADS;
          for (var quad = 0u; quad < QUADS_PER_CHUNK; quad++) {
            let w = quad_of(w_next[i], quad, zero_next[i]) * scale_next[i];
            w_tile[line + job % CHUNKS_PER_GROUP * QUADS_PER_CHUNK + quad] = vec4<Element>(w);
          }
        }
      }
      workgroupBarrier();
    }
    if (group < groups) {
      for (var i = 0u; i < X_LOADS; i++) {
        x_next[i] = x[x_at[i] + group * 8];
      }
      for (var i = 0u; i < W_LOADS; i++) {
        w_next[i] = weight[output[i] * chunks + group * CHUNKS_PER_GROUP + (thread + i * THREADS) % CHUNKS_PER_GROUP];
        scale_next[i] = scale_of(output[i], group, params.scales_per_output);
        zero_next[i] = zero_of(output[i], group, params.scales_per_output);
      }
    }
    if (group > 0) {
      for (var k = 0u; k < 32; k += K) {
        for (var i = 0u; i < OWN_ROWS / M; i++) {
          let x_first = (buffer * ROWS_TILE + row_at + i * M) * LINE_QUADS + k / 4;
          let a = subgroupMatrixLoad<subgroup_matrix_left<Element, K, M>, row_major>(&x_tile, x_first, LINE_QUADS);
          for (var j = 0u; j < OWN_OUTPUTS / N; j++) {
            let w_first = (buffer * OUTPUTS_TILE + output_at + j * N) * LINE_QUADS + k / 4;
            let b = subgroupMatrixLoad<subgroup_matrix_right<Element, N, K>, col_major>(&w_tile, w_first, LINE_QUADS);
            totals[i][j] = subgroupMatrixMultiplyAccumulate(a, b, totals[i][j]);
          }
        }
      }
      if (SECTIONED == 1 && (group % SECTION == 0 || group == groups)) {
        for (var slab = 0u; slab < SLABS; slab++) {
          if (subgroup / BY_OUTPUTS == slab * SLAB / OWN_ROWS) {
            for (var i = 0u; i < SLAB / M; i++) {
              for (var j = 0u; j < OWN_OUTPUTS / N; j++) {
                let to = i * M * OUTPUTS_TILE + output_at + j * N;
                subgroupMatrixStore<row_major>(&sums, to, totals[slab * SLAB % OWN_ROWS / M + i][j], OUTPUTS_TILE);
              }
            }
          }
          workgroupBarrier();
          for (var i = 0u; i < SLAB_SUMS; i++) {
            added[slab * SLAB_SUMS + i] += sums[thread + i * THREADS];
          }
          workgroupBarrier();
        }
        totals = array<array<subgroup_matrix_result<f32, N, M>, OWN_OUTPUTS / N>, OWN_ROWS / M>();
      }
    }
  }

  for (var slab = 0u; slab < SLABS; slab++) {
    if (SECTIONED == 1) {
      for (var i = 0u; i < SLAB_SUMS; i++) {
        sums[thread + i * THREADS] = added[slab * SLAB_SUMS + i];
      }
    } else if (subgroup / BY_OUTPUTS == slab * SLAB / OWN_ROWS) {
      for (var i = 0u; i < SLAB / M; i++) {
        for (var j = 0u; j < OWN_OUTPUTS / N; j++) {
          let to = i * M * OUTPUTS_TILE + output_at + j * N;
          subgroupMatrixStore<row_major>(&sums, to, totals[slab * SLAB % OWN_ROWS / M + i][j], OUTPUTS_TILE);
        }
      }
    }
    workgroupBarrier();
    for (var at = thread; at < SLAB * OUTPUTS_TILE; at += THREADS) {
      let row = first_row + slab * SLAB + at / OUTPUTS_TILE;
      let output = first + at % OUTPUTS_TILE;
      if (row < num_rows && output < params.outputs) {
        finish(row, output, sums[at], sums[(at + 1) % (SLAB * OUTPUTS_TILE)]);
      }
    }
    workgroupBarrier();
  }
}
