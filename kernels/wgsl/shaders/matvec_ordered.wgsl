// matvec_ordered: matvec in one order of summation (E2), the order that matmul has for many rows; the `deterministic` set
//
//   Buffers as in linear.wgsl. The order: a group's 32 products are added to zero by fma, inputs ascending; groups are added
//   by fma(sum of the group, its scale, total), ascending.
//
// One workgroup per LANES * ROWS outputs and COLUMNS rows of x. A thread sums groups of ROWS neighbouring outputs, so that an x that is
// loaded once serves all of them; LANES neighbouring threads have the same group of other outputs, so that 32 lanes load x from only
// 32 / LANES different positions. Sums go into workgroup memory, a SECTION of groups at a time; then one thread per output and row adds
// them up in order. No subgroups.

// Groups that the workgroup has at a time, and between two barriers: 3 KiB of sums, or more.
const AT_ONCE = WORKGROUP_SIZE / LANES;
const SECTION = AT_ONCE * max(1u, 768u / (SUMS * AT_ONCE));
// Half a group is 16 inputs (four quads): its number of chunks, and the quads in each. Nibbles have a whole group in one chunk, whose
// halves count as a chunk each.
const HALF_CHUNKS = max(1u, CHUNKS_PER_GROUP / 2);
const HALF_QUADS = 4 / HALF_CHUNKS;
// Loads in flight before the first is added.
const BATCH = 8u;

var<workgroup> partial: array<f32, SECTION * SUMS>;
var<workgroup> factors: array<f32, SECTION * OUTPUTS>;
var<workgroup> totals: array<f32, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn matvec_ordered(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = (workgroup.z * params.grid_y + workgroup.y) * OUTPUTS;
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
  let x_at = x_rows(first_row, num_rows);
  let columns = select(COLUMNS, num_rows - first_row, EXPERTS == 1);
  let own = thread % LANES * ROWS;
  let output = own_outputs(rows.base, first + own);
  var total = 0.0;
  for (var start = 0u; start < groups; start += SECTION) {
    let count = min(SECTION, groups - start);
    for (var at = thread / LANES; at < count; at += AT_ONCE) {
      let group = start + at;
      var zero: array<f32, ROWS>;
      for (var r = 0u; r < ROWS; r++) {
        zero[r] = zero_of(output[r], group, params.scales_per_output);
        factors[at * OUTPUTS + own + r] = scale_of(output[r], group, params.scales_per_output);
      }
      var sums = array<f32, ROWS * COLUMNS>();
      var whole: array<vec4u, ROWS>;
      if (CHUNKS_PER_GROUP == 1) {
        for (var r = 0u; r < ROWS; r++) {
          whole[r] = weight[output[r] * chunks + group];
        }
      }
      // Half a group at a time: a whole group in registers would let fewer workgroups run side by side.
      for (var half = 0u; half < unknown(2); half++) {
        var loaded: array<vec4u, HALF_CHUNKS * ROWS>;
        for (var i = 0u; i < HALF_CHUNKS * ROWS; i++) {
          if (CHUNKS_PER_GROUP == 1) {
            loaded[i] = vec4u(select(whole[i].xy, whole[i].zw, half == 1), 0, 0);
          } else {
            loaded[i] = weight[output[i % ROWS] * chunks + (group * 2 + half) * HALF_CHUNKS + i / ROWS];
          }
        }
        for (var quad = 0u; quad < bound(4); quad++) {
          let k = group * 8 + half * 4 + quad;
          var w: array<vec4f, ROWS>;
          for (var r = 0u; r < ROWS; r++) {
            w[r] = quad_of(loaded[quad / HALF_QUADS * ROWS + r], quad % HALF_QUADS, zero[r]);
          }
          for (var column = 0u; column < COLUMNS; column++) {
            if (EXPERTS == 1 && column >= columns) {
              break;
            }
            var v = x[x_at[column] + k];
            if (NORMED == 1) {
              v = norm[k] * (v * scale);
            }
            for (var r = 0u; r < ROWS; r++) {
              var sum = sums[r * COLUMNS + column];
              sum = fma(v.x, w[r].x, sum);
              sum = fma(v.y, w[r].y, sum);
              sum = fma(v.z, w[r].z, sum);
              sums[r * COLUMNS + column] = fma(v.w, w[r].w, sum);
            }
          }
        }
      }
      for (var i = 0u; i < ROWS * COLUMNS; i++) {
        partial[at * SUMS + own * COLUMNS + i] = sums[i];
      }
    }
    workgroupBarrier();
    if (thread < SUMS) {
      for (var at = 0u; at < count; at += BATCH) {
        var sums: array<f32, BATCH>;
        var scales_of: array<f32, BATCH>;
        for (var i = 0u; i < BATCH; i++) {
          let one = min(at + i, count - 1);
          sums[i] = partial[one * SUMS + thread];
          scales_of[i] = factors[one * OUTPUTS + thread / COLUMNS];
        }
        for (var i = 0u; i < BATCH; i++) {
          total = select(total, fma(sums[i], scales_of[i], total), at + i < count);
        }
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
