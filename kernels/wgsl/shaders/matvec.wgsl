// matvec: out[r, o] (+)= x[r, :] . weight[o, :] (+ bias[o]), for the few rows of a decode step; the `fast` set
//
//   Buffers as in linear.wgsl. NORMED 1: x is normalised on the way in (one row only).
//
// One workgroup per LANES * ROWS outputs and COLUMNS rows of x: grid (rows / COLUMNS, outputs folded over y and z), so that workgroups
// that share weights run together. Each lane loads 16 bytes of each of its ROWS outputs and multiplies them with every column; LANES
// neighbouring lanes multiply the same inputs for other outputs, so that 32 lanes' loads of x are at most 1 KiB apart. The inputs are split
// over the workgroup, then summed: over lanes by shuffles, over subgroups in workgroup memory. Right for every subgroup size from 4 on.
// Sums depend on the subgroup size; matvec_ordered's do not.
enable subgroups;

const WORKGROUP_SIZE: u32 = 128;

const OWN_SUMS = ROWS * COLUMNS;
const MIN_SUBGROUP_SIZE = 4u;

var<workgroup> partial: array<f32, (WORKGROUP_SIZE / MIN_SUBGROUP_SIZE) * SUMS>;
var<workgroup> squares: array<f32, WORKGROUP_SIZE / MIN_SUBGROUP_SIZE>;
var<workgroup> totals: array<f32, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn matvec(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(num_subgroups) num_subgroups: u32,
  @builtin(subgroup_size) subgroup_size: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
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
    var sum = 0.0;
    for (var i = thread; i < stride; i += WORKGROUP_SIZE) {
      let v = x[first_row * stride + i];
      sum += dot(v, v);
    }
    sum = subgroupAdd(sum);
    if (lane == 0) {
      squares[subgroup] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < num_subgroups; i++) {
      total += squares[i];
    }
    scale = inverseSqrt(fma(total, params.inverse_norm_width, params.epsilon));
  }

  let x_at = x_rows(first_row, num_rows);
  let columns = select(COLUMNS, num_rows - first_row, EXPERTS == 1);
  let own = thread % LANES * ROWS;
  let output = own_outputs(rows.base, first + own);
  var sums = array<f32, OWN_SUMS>();
  let chunks = params.quads / QUADS_PER_CHUNK;
  for (var chunk = thread / LANES; chunk < chunks; chunk += WORKGROUP_SIZE / LANES) {
    var loaded: array<vec4u, ROWS>;
    var factor: array<f32, ROWS>;
    var zero: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
      loaded[r] = weight[output[r] * chunks + chunk];
      factor[r] = scale_of(output[r], chunk / CHUNKS_PER_GROUP, params.scales_per_output);
      zero[r] = zero_of(output[r], chunk / CHUNKS_PER_GROUP, params.scales_per_output);
    }
    // A chunk lies within a group: its sum is scaled once.
    var of_chunk = array<f32, OWN_SUMS>();
    for (var quad = 0u; quad < bound(QUADS_PER_CHUNK); quad++) {
      let at = chunk * QUADS_PER_CHUNK + quad;
      var w: array<vec4f, ROWS>;
      for (var r = 0u; r < ROWS; r++) {
        w[r] = quad_of(loaded[r], quad, zero[r]);
      }
      for (var column = 0u; column < COLUMNS; column++) {
        if (EXPERTS == 1 && column >= columns) {
          break;
        }
        var v = x[x_at[column] + at];
        if (NORMED == 1) {
          v = norm[at] * (v * scale);
        }
        for (var r = 0u; r < ROWS; r++) {
          of_chunk[r * COLUMNS + column] += dot(w[r], v);
        }
      }
    }
    for (var i = 0u; i < OWN_SUMS; i++) {
      sums[i] = fma(of_chunk[i], factor[i / COLUMNS], sums[i]);
    }
  }

  for (var i = 0u; i < OWN_SUMS; i++) {
    var sum = sums[i];
    for (var stride = LANES; stride < subgroup_size; stride *= 2) {
      sum += subgroupShuffleXor(sum, stride);
    }
    if (lane < LANES) {
      partial[subgroup * SUMS + own * COLUMNS + i] = sum;
    }
  }
  workgroupBarrier();
  for (var i = thread; i < SUMS; i += WORKGROUP_SIZE) {
    var total = 0.0;
    for (var s = 0u; s < num_subgroups; s++) {
      total += partial[s * SUMS + i];
    }
    totals[i] = total;
  }
  workgroupBarrier();
  for (var i = thread; i < SUMS; i += WORKGROUP_SIZE) {
    let output = first + i / COLUMNS;
    let row = first_row + i % COLUMNS;
    if (output < params.outputs && row < num_rows) {
      finish(row, output, totals[i], totals[(i + COLUMNS) % SUMS]);
    }
  }
}
