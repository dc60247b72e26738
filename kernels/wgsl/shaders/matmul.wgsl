// matmul: out[r, o] (+)= x[r, :] . weight[o, :] (+ bias[o]), for the many rows of a prefill chunk
//
//   Buffers as in linear.wgsl. Element is what a tile holds in workgroup memory: f32 (deterministic) or f16 (fast; half the
//   traffic). Sums are f32, in the order of matvec_ordered.wgsl: groups of 32 inputs, ascending.
//
// One workgroup of 256 threads per 64 x 64 outputs, 4 x 4 a thread: grid (outputs / 64, rows / 64). A step of the loop takes 32
// inputs: half the threads load and transpose x, the others the weights.
alias Element = f32;

const IS_F16: u32 = 0;

// [32 inputs][16 vectors of 4 rows or outputs]; the last vector of a row pads the banks.
const TILE_STRIDE = 17u;

var<workgroup> x_tile: array<vec4<Element>, 32 * TILE_STRIDE>;
var<workgroup> w_tile: array<vec4<Element>, 32 * TILE_STRIDE>;
var<workgroup> factors: array<vec4f, 16>;

@compute @workgroup_size(256)
fn matmul(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
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
  let row_quad = thread / 16;
  let output_quad = thread % 16;

  // Rows of x that this thread loads; only the first half of the threads load x.
  var x_at: array<u32, 4>;
  for (var i = 0u; i < 4; i++) {
    x_at[i] = row_of(min(first_row + thread % 128 / 8 * 4 + i, num_rows - 1)) * stride;
  }
  var totals = array<vec4f, 4>();
  for (var group = 0u; group < groups; group++) {
    // Eight quads of inputs times sixteen quads of rows; neighbours read neighbouring inputs.
    let job = thread % 128;
    let k = job % 8;
    let lines = job / 8;
    var v: array<vec4f, 4>;
    if (thread < 128) {
      for (var i = 0u; i < 4; i++) {
        v[i] = x[x_at[i] + group * 8 + k];
        if (IS_F16 == 1) {
          v[i] = clamp(v[i], vec4f(-65504.0), vec4f(65504.0));
        }
      }
    } else {
      for (var i = 0u; i < 4; i++) {
        let output = min(first + lines * 4 + i, params.outputs - 1);
        let quad = group * 8 + k;
        let zero = zero_of(rows.base + output, group, params.scales_per_output);
        v[i] = quad_of(weight[(rows.base + output) * chunks + quad / QUADS_PER_CHUNK], quad % QUADS_PER_CHUNK, zero);
      }
    }
    for (var j = 0u; j < 4; j++) {
      let at = (k * 4 + j) * TILE_STRIDE + lines;
      let column = vec4<Element>(vec4f(v[0][j], v[1][j], v[2][j], v[3][j]));
      if (thread < 128) {
        x_tile[at] = column;
      } else {
        w_tile[at] = column;
      }
    }
    if (HAS_SCALES && thread < 16) {
      var factor: vec4f;
      for (var i = 0u; i < 4; i++) {
        factor[i] = scale_of(rows.base + min(first + thread * 4 + i, params.outputs - 1), group, params.scales_per_output);
      }
      factors[thread] = factor;
    }
    workgroupBarrier();

    var sums = array<vec4f, 4>();
    for (var i = 0u; i < bound(32); i++) {
      let a = vec4f(x_tile[i * TILE_STRIDE + row_quad]);
      let b = vec4f(w_tile[i * TILE_STRIDE + output_quad]);
      sums[0] = fma(vec4f(a.x), b, sums[0]);
      sums[1] = fma(vec4f(a.y), b, sums[1]);
      sums[2] = fma(vec4f(a.z), b, sums[2]);
      sums[3] = fma(vec4f(a.w), b, sums[3]);
    }
    var factor = vec4f(1.0);
    if (HAS_SCALES) {
      factor = factors[output_quad];
    }
    for (var i = 0u; i < 4; i++) {
      totals[i] = fma(sums[i], factor, totals[i]);
    }
    workgroupBarrier();
  }

  for (var i = 0u; i < 4; i++) {
    let row = first_row + row_quad * 4 + i;
    for (var j = 0u; j < 4; j++) {
      let output = first + output_quad * 4 + j;
      if (row < num_rows && output < params.outputs) {
        finish(row, output, totals[i][j], totals[i][(j + 1) % 4]);
      }
    }
  }
}
