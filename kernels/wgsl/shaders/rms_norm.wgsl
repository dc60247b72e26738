// rms_norm: out[r, :] (+)= weight[:] * (x[r, :] / sqrt(mean(x[r, :]^2) + epsilon)); with has_scalar out[r, :] *= scalar[0] then
//
//   x, out  [rows][stride] f32, rows padded with zeros to whole vectors
//   weight  [stride]       f32
//
// One workgroup per row.

struct Params {
  inverse_hidden: f32,
  stride: u32,
  epsilon: f32,
  is_accumulating: u32,
  has_scalar: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;
@group(0) @binding(3) var<storage, read> scalar: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let quads = params.stride / 4;
  let row = workgroup.x * quads;
  let scale = row_scale(row, quads, params.inverse_hidden, params.epsilon, thread);
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    let normed = weight[i] * (x[row + i] * scale);
    let sum = select(normed, out[row + i] + normed, params.is_accumulating == 1);
    out[row + i] = select(sum, sum * scalar[0], params.has_scalar == 1);
  }
}
