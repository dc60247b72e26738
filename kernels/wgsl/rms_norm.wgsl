// rms_norm: out[r, :] = weight[:] * (x[r, :] / sqrt(mean(x[r, :]^2) + epsilon))
//
//   x, out  [rows][stride] f32, rows padded with zeros to whole vectors
//   weight  [stride]       f32
//
// One workgroup per row. Each thread sums the squares of every WORKGROUP_SIZE-th vector, then the workgroup tree-reduces
// (WORKGROUP_SIZE is a power of two): the order that matvec_ordered repeats when it normalises by itself.

const WORKGROUP_SIZE: u32 = 128;

struct Params {
  inverse_hidden: f32,
  stride: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;

var<workgroup> partial: array<f32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let quads = params.stride / 4;
  let row = workgroup.x * quads;
  var sum = 0.0;
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    let v = x[row + i];
    sum = fma(v.x, v.x, sum);
    sum = fma(v.y, v.y, sum);
    sum = fma(v.z, v.z, sum);
    sum = fma(v.w, v.w, sum);
  }
  partial[thread] = sum;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      partial[thread] += partial[thread + half];
    }
    workgroupBarrier();
  }
  let scale = inverseSqrt(fma(partial[0], params.inverse_hidden, params.epsilon));
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    out[row + i] = weight[i] * (x[row + i] * scale);
  }
}
