// matvec: out[r, o] (+)= sum over k of x[r, k] * weight[o, k] (+ bias[o])
//
//   x       [rows, x_width]      f32, the first `inner` of a row are used
//   weight  [outputs, inner]     f32
//   bias    [outputs]            f32, read when has_bias is 1
//   out     [rows, out_width]    f32
//
// One workgroup per output and row: grid (outputs folded over x and z, rows). Each thread sums every WORKGROUP_SIZE-th
// product, then the workgroup tree-reduces; WORKGROUP_SIZE is a power of two. No subgroups: right for every subgroup size.

override WORKGROUP_SIZE: u32 = 64;

struct Params {
  outputs: u32,
  inner: u32,
  x_width: u32,
  out_width: u32,
  has_bias: u32,
  is_accumulating: u32,
  grid_x: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

var<workgroup> partial: array<f32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn matvec(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Uniform for the workgroup, so every thread reaches the barriers or none does.
  let output = workgroup.z * params.grid_x + workgroup.x;
  if (output >= params.outputs) {
    return;
  }
  let row = workgroup.y;

  var sum = 0.0;
  for (var k = thread; k < params.inner; k += WORKGROUP_SIZE) {
    sum += x[row * params.x_width + k] * weight[output * params.inner + k];
  }
  partial[thread] = sum;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      partial[thread] += partial[thread + half];
    }
    workgroupBarrier();
  }

  if (thread == 0) {
    let at = row * params.out_width + output;
    var value = partial[0];
    if (params.has_bias == 1) {
      value += bias[output];
    }
    if (params.is_accumulating == 1) {
      value += out[at];
    }
    out[at] = value;
  }
}
