// space_steps: prepares delta_rule for a state space, in place
//
//   steps   [rows][stride] f32: a value of each head, which becomes step = softplus(value + dt_bias) between least and most; after them
//           e^(-e^a_log * step) of each head
//
// One thread per head of a row, grid (heads / WORKGROUP_SIZE, rows).

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  stride: u32,
  heads: u32,
  least: f32,
  most: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a_log: array<f32>;
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> steps: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn space_steps(@builtin(global_invocation_id) id: vec3u) {
  let head = id.x;
  if (head >= params.heads) {
    return;
  }
  let at = id.y * params.stride + head;
  let width = min(max(softplus(steps[at] + dt_bias[head]), params.least), params.most);
  steps[at] = width;
  steps[at + params.heads] = exp(-exp(a_log[head]) * width);
}
