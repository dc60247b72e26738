// sigmoid_mul: x[r, i] = x[r, i] / (1 + e^-gate), in place
//
//   x     [rows][stride] f32
//   gate  [rows][gate_stride] f32: from `first` on a gate for each value, or one for the row if is_per_row
//
// One thread per value, grid (width / WORKGROUP_SIZE, rows).

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  width: u32,
  stride: u32,
  gate_stride: u32,
  first: u32,
  is_per_row: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sigmoid_mul(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= params.width) {
    return;
  }
  let at = id.y * params.gate_stride + params.first + select(id.x, 0u, params.is_per_row == 1);
  x[id.y * params.stride + id.x] *= 1.0 / (1.0 + exp(-gate[at]));
}
