// head_linear: out[r, h * out_head + o] = x[r, h * x_head ..] . weight[h, o, :], a product of its own for each head
//
//   x       [rows][x_stride] f32, INNER values of a head from h * x_head on
//   weight  [heads][outputs][inner] in FORMAT, the slice that starts at head first_head
//   step    the step's header: [0] is the number of rows
//   out     [rows][out_stride] f32
//
// The order of sums is that of matvec_ordered and matmul (E2): a group's 32 products are added to zero by fma, inputs ascending; groups are
// added by fma(sum of the group, its scale, total), ascending.
//
// One workgroup per WORKGROUP_SIZE * EACH outputs of a head, ROWS rows and head; a thread has EACH outputs, WORKGROUP_SIZE apart, so that one
// load of x serves all of them. A group of x lies in workgroup memory, zeros after a head's inputs.

const WORKGROUP_SIZE: u32 = 64;
const ROWS: u32 = 1;
const EACH: u32 = 1;
const UNROLLED: u32 = 1;

struct Params {
  outputs: u32,
  first_head: u32,
  inner_quads: u32,
  groups: u32,
  scales_per_output: u32,
  x_stride: u32,
  x_head: u32,
  out_stride: u32,
  out_head: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4u>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> step: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

const SUMS = ROWS * EACH;

var<workgroup> group_of_x: array<vec4f, ROWS * 8>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn head_linear(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let head = workgroup.z;
  let num_rows = step[0];
  let first_row = workgroup.y * ROWS;
  let first = workgroup.x * WORKGROUP_SIZE * EACH + thread;
  let x_at = (params.first_head + head) * params.x_head / 4;
  let chunks = params.groups * CHUNKS_PER_GROUP;
  var output: array<u32, EACH>;
  for (var e = 0u; e < EACH; e++) {
    output[e] = head * params.outputs + min(first + e * WORKGROUP_SIZE, params.outputs - 1);
  }
  var totals = array<f32, SUMS>();
  for (var group = 0u; group < params.groups; group++) {
    for (var i = thread; i < ROWS * 8; i += WORKGROUP_SIZE) {
      let quad = group * 8 + i % 8;
      let row = min(first_row + i / 8, num_rows - 1);
      group_of_x[i] = select(vec4f(0.0), x[row * params.x_stride / 4 + x_at + quad], quad < params.inner_quads);
    }
    workgroupBarrier();
    var sums = array<f32, SUMS>();
    for (var chunk = 0u; chunk < bound(CHUNKS_PER_GROUP); chunk++) {
      var loaded: array<vec4u, EACH>;
      for (var e = 0u; e < EACH; e++) {
        loaded[e] = weight[output[e] * chunks + group * CHUNKS_PER_GROUP + chunk];
      }
      for (var quad = 0u; quad < bound(QUADS_PER_CHUNK); quad++) {
        var w: array<vec4f, EACH>;
        for (var e = 0u; e < EACH; e++) {
          w[e] = quad_of(loaded[e], quad, zero_of(output[e], group, params.scales_per_output));
        }
        for (var row = 0u; row < ROWS; row++) {
          let v = group_of_x[row * 8 + chunk * QUADS_PER_CHUNK + quad];
          for (var e = 0u; e < EACH; e++) {
            var sum = sums[row * EACH + e];
            sum = fma(v.x, w[e].x, sum);
            sum = fma(v.y, w[e].y, sum);
            sum = fma(v.z, w[e].z, sum);
            sums[row * EACH + e] = fma(v.w, w[e].w, sum);
          }
        }
      }
    }
    for (var e = 0u; e < EACH; e++) {
      let scale = scale_of(output[e], group, params.scales_per_output);
      for (var row = 0u; row < ROWS; row++) {
        totals[row * EACH + e] = fma(sums[row * EACH + e], scale, totals[row * EACH + e]);
      }
    }
    workgroupBarrier();
  }
  for (var row = 0u; row < ROWS; row++) {
    for (var e = 0u; e < EACH; e++) {
      let at = first + e * WORKGROUP_SIZE;
      if (at < params.outputs && first_row + row < num_rows) {
        out[(first_row + row) * params.out_stride + (params.first_head + head) * params.out_head + at] = totals[row * EACH + e];
      }
    }
  }
}

// A loop's end that the compiler does not know (no row has 2^31 values).
fn unknown(end: u32) -> u32 {
  return end + (params.x_stride >> 31);
}

// Hides a loop's end from the software driver's compiler; where UNROLLED is 1, kernel.ts removes the call.
fn bound(end: u32) -> u32 {
  return unknown(end);
}
