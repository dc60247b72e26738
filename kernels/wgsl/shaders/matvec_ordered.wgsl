// matvec_ordered: matvec in one order of summation (E2), the order that matmul has for many rows; the `deterministic` set
//
//   Buffers as in linear.wgsl. The order: a group's 32 products are added to zero by fma, inputs ascending; groups are added
//   by fma(sum of the group, its scale, total), ascending.
//
// One workgroup per ROWS outputs and COLUMNS rows of x. Each thread sums whole groups into workgroup memory, a SECTION of
// groups at a time; then one thread per output and row adds them up in order. No subgroups.

const ROWS: u32 = 4;
const COLUMNS: u32 = 1;
const NORMED: u32 = 0;

const SUMS = ROWS * COLUMNS;
const SECTION = 2048u / SUMS;

var<workgroup> partial: array<f32, SECTION * SUMS>;
var<workgroup> factors: array<f32, SECTION * ROWS>;
var<workgroup> totals: array<f32, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn matvec_ordered(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = (workgroup.z * params.grid_y + workgroup.y) * ROWS;
  if (first >= params.outputs) {
    return;
  }
  let rows = rows_of(workgroup.x, COLUMNS);
  let num_rows = rows.end;
  let first_row = rows.first;
  if (first_row >= num_rows) {
    return;
  }
  let stride = params.x_stride / 4;

  var scale = 1.0;
  if (NORMED == 1) {
    scale = row_scale(first_row * stride, stride, params.inverse_norm_width, params.epsilon, thread);
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
      let zero = zero_of(rows.base + output, group, params.scales_per_output);
      var sums = array<f32, COLUMNS>();
      for (var c = 0u; c < bound(CHUNKS_PER_GROUP); c++) {
        let chunk = group * CHUNKS_PER_GROUP + c;
        let loaded = weight[(rows.base + output) * chunks + chunk];
        for (var quad = 0u; quad < bound(QUADS_PER_CHUNK); quad++) {
          let w = quad_of(loaded, quad, zero);
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
      factors[at * ROWS + r] = scale_of(rows.base + output, group, params.scales_per_output);
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
