// rms_norm: out[r, :] = weight[:] * x[r, :] / sqrt(mean(x[r, :]^2) + epsilon)
//
//   x, out  [rows, hidden] f32
//   weight  [hidden]       f32
//
// One workgroup per row. Each thread sums the squares of every WORKGROUP_SIZE-th element, then the
// workgroup tree-reduces; WORKGROUP_SIZE is a power of two.

override WORKGROUP_SIZE: u32 = 64;

struct Params {
  rows: u32,
  hidden: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

var<workgroup> partial: array<f32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = workgroup.x * params.hidden;

  var sum = 0.0;
  for (var i = thread; i < params.hidden; i += WORKGROUP_SIZE) {
    sum += x[row + i] * x[row + i];
  }
  let mean_square = reduce_sum(thread, sum) / f32(params.hidden);

  let scale = inverseSqrt(mean_square + params.epsilon);
  for (var i = thread; i < params.hidden; i += WORKGROUP_SIZE) {
    out[row + i] = weight[i] * x[row + i] * scale;
  }
}

// Sum of `value` over the workgroup, returned to every thread.
fn reduce_sum(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      partial[thread] += partial[thread + half];
    }
    workgroupBarrier();
  }
  return partial[0];
}
