// matmul_subgroup_matrix: matmul on the adapter's matrix units, where it has any; the `fast` set
//
//   Buffers as in linear.wgsl. Element is what tiles hold, f16 or f32; sums are f32, because thousands of inputs in f16 sums lose percents.
//   M, N, K are the adapter's configuration: [M, K] times [K, N]; each divides 32, and 4 divides K.
//   SUBGROUP_SIZE is the adapter's only one, or the one that is asked for where it has several.
//
// One workgroup of four subgroups per 64 x 64 outputs, 32 x 32 a subgroup: grid (outputs / 64, rows / 64). A step of the loop
// stages 32 inputs of 64 rows and of 64 outputs, scales applied. Sums go through workgroup memory, because a matrix has no
// access to its elements.
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

const THREADS = 4 * SUBGROUP_SIZE;
// Of a tile's line in workgroup memory: 32 inputs and a pad against bank conflicts. Loads of matrices count their offsets and strides
// in elements of the array: vectors of four.
const LINE_QUADS = 10u;

var<workgroup> x_tile: array<vec4<Element>, 64 * LINE_QUADS>;
var<workgroup> w_tile: array<vec4<Element>, 64 * LINE_QUADS>;
// Half of the outputs, 32 rows, so that all fits 32 KiB with tiles of f32 too.
var<workgroup> sums: array<f32, 32 * 64>;

@compute @workgroup_size(THREADS) @subgroup_size(SUBGROUP_SIZE)
fn matmul_subgroup_matrix(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
) {
  let rows = rows_of(workgroup.y, 64u);
  let num_rows = rows.end;
  let first_row = rows.first;
  if (first_row >= num_rows) {
    return;
  }
  let first = workgroup.x * 64;
  let stride = params.x_stride / 4;
  let chunks = params.quads / QUADS_PER_CHUNK;
  let groups = params.quads / 8;
  let row_at = subgroup / 2 * 32;
  let output_at = subgroup % 2 * 32;

  var totals: array<array<subgroup_matrix_result<f32, N, M>, 32 / N>, 32 / M>;
  for (var group = 0u; group < groups; group++) {
    for (var job = thread; job < 512; job += THREADS) {
      let line = job / 8;
      let k = job % 8;
      let row = row_of(min(first_row + line, num_rows - 1));
      let v = clamp(x[row * stride + group * 8 + k], vec4f(-65504.0), vec4f(65504.0));
      x_tile[line * LINE_QUADS + k] = vec4<Element>(v);
      let output = min(first + line, params.outputs - 1);
      let quad = group * 8 + k;
      let zero = zero_of(rows.base + output, group, params.scales_per_output);
      let w = quad_of(weight[(rows.base + output) * chunks + quad / QUADS_PER_CHUNK], quad % QUADS_PER_CHUNK, zero);
      w_tile[line * LINE_QUADS + k] = vec4<Element>(w * scale_of(rows.base + output, group, params.scales_per_output));
    }
    workgroupBarrier();
    for (var k = 0u; k < 32; k += K) {
      for (var i = 0u; i < 32 / M; i++) {
        let a = subgroupMatrixLoad<subgroup_matrix_left<Element, K, M>, row_major>(&x_tile, (row_at + i * M) * LINE_QUADS + k / 4, LINE_QUADS);
        for (var j = 0u; j < 32 / N; j++) {
          let b = subgroupMatrixLoad<subgroup_matrix_right<Element, N, K>, col_major>(&w_tile, (output_at + j * N) * LINE_QUADS + k / 4, LINE_QUADS);
          totals[i][j] = subgroupMatrixMultiplyAccumulate(a, b, totals[i][j]);
        }
      }
    }
    workgroupBarrier();
  }
  for (var half = 0u; half < 2; half++) {
    if (subgroup / 2 == half) {
      for (var i = 0u; i < 32 / M; i++) {
        for (var j = 0u; j < 32 / N; j++) {
          subgroupMatrixStore<row_major>(&sums, i * M * 64 + output_at + j * N, totals[i][j], 64);
        }
      }
    }
    workgroupBarrier();
    for (var at = thread; at < 32 * 64; at += THREADS) {
      let row = first_row + half * 32 + at / 64;
      let output = first + at % 64;
      if (row < num_rows && output < params.outputs) {
        finish(row, output, sums[at], sums[(at + 1) % 2048]);
      }
    }
    workgroupBarrier();
  }
}
