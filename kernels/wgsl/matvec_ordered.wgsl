// matvec_ordered: matvec in one order of summation (E2), the order that matmul has for many rows; the `deterministic` set
//
//   Buffers as in matvec.wgsl. The order: a group's 32 products are added to zero by fma, inputs ascending; groups are added
//   by fma(sum of the group, its scale, total), ascending.
//
// One workgroup per ROWS outputs and COLUMNS rows of x. Each thread sums whole groups into workgroup memory, a SECTION of
// groups at a time; then one thread per output and row adds them up in order. No subgroups.

const FORMAT: u32 = 0;
const ROWS: u32 = 4;
const COLUMNS: u32 = 1;
const GATED: u32 = 0;
const NORMED: u32 = 0;
const UNROLLED: u32 = 1;
const WORKGROUP_SIZE: u32 = 128;

struct Params {
  outputs: u32,
  first_output: u32,
  quads: u32,
  scales_per_output: u32,
  x_stride: u32,
  out_stride: u32,
  has_bias: u32,
  is_accumulating: u32,
  count_at: u32,
  grid_y: u32,
  half_outputs: u32,
  inverse_norm_width: f32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4u>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<vec4f>;
@group(0) @binding(6) var<storage, read> step: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

const SUMS = ROWS * COLUMNS;
const SECTION = 2048u / SUMS;

var<workgroup> partial: array<f32, SECTION * SUMS>;
var<workgroup> factors: array<f32, SECTION * ROWS>;
var<workgroup> squares: array<f32, WORKGROUP_SIZE>;
var<workgroup> totals: array<f32, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn matvec_ordered(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = (workgroup.z * params.grid_y + workgroup.y) * ROWS;
  if (first >= params.outputs) {
    return;
  }
  let num_rows = step[params.count_at];
  let first_row = workgroup.x * COLUMNS;
  let stride = params.x_stride / 4;

  var scale = 1.0;
  if (NORMED == 1) {
    scale = norm_scale(first_row * stride, stride, thread);
  }

  let groups = params.quads / 8;
  let chunks = params.quads / QUADS_PER_CHUNK;
  var total = 0.0;
  for (var start = 0u; start < groups; start += SECTION) {
    let count = min(SECTION, groups - start);
    for (var unit = thread; unit < ROWS * count; unit += WORKGROUP_SIZE) {
      let r = unit / count;
      let at = unit % count;
      let group = start + at;
      let output = min(first + r, params.outputs - 1);
      var sums = array<f32, COLUMNS>();
      for (var c = 0u; c < bound(CHUNKS_PER_GROUP); c++) {
        let chunk = group * CHUNKS_PER_GROUP + c;
        let loaded = weight[output * chunks + chunk];
        for (var quad = 0u; quad < bound(QUADS_PER_CHUNK); quad++) {
          let w = quad_of(loaded, quad);
          let k = chunk * QUADS_PER_CHUNK + quad;
          for (var column = 0u; column < COLUMNS; column++) {
            var v = x[min(first_row + column, num_rows - 1) * stride + k];
            if (NORMED == 1) {
              v = norm[k] * (v * scale);
            }
            var sum = sums[column];
            sum = fma(v.x, w.x, sum);
            sum = fma(v.y, w.y, sum);
            sum = fma(v.z, w.z, sum);
            sums[column] = fma(v.w, w.w, sum);
          }
        }
      }
      for (var column = 0u; column < COLUMNS; column++) {
        partial[at * SUMS + r * COLUMNS + column] = sums[column];
      }
      factors[at * ROWS + r] = scale_of(output, group, params.scales_per_output);
    }
    workgroupBarrier();
    if (thread < SUMS) {
      for (var at = 0u; at < count; at++) {
        total = fma(partial[at * SUMS + thread], factors[at * ROWS + thread / COLUMNS], total);
      }
    }
    workgroupBarrier();
  }
  if (thread < SUMS) {
    totals[thread] = total;
  }
  workgroupBarrier();
  if (thread < SUMS) {
    let output = first + thread / COLUMNS;
    let row = first_row + thread % COLUMNS;
    if (output < params.outputs && row < num_rows) {
      finish(row, output, totals[thread], totals[(thread + COLUMNS) % SUMS]);
    }
  }
}

// As in rms_norm.wgsl, in the same order.
fn norm_scale(row: u32, quads: u32, thread: u32) -> f32 {
  var sum = 0.0;
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    let v = x[row + i];
    sum = fma(v.x, v.x, sum);
    sum = fma(v.y, v.y, sum);
    sum = fma(v.z, v.z, sum);
    sum = fma(v.w, v.w, sum);
  }
  squares[thread] = sum;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      squares[thread] += squares[thread + half];
    }
    workgroupBarrier();
  }
  return inverseSqrt(fma(squares[0], params.inverse_norm_width, params.epsilon));
}
