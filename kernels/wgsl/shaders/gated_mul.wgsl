// gated_mul: out[r, i] = gate_of(gate_up[r, i]) * gate_up[r, inner + i]
//
//   gate_up  [rows][gate_up_stride] f32
//   out      [rows][out_stride]     f32
//
// One thread per output, grid (inner / WORKGROUP_SIZE, rows). Only for programs whose product does not do it by itself.

const WORKGROUP_SIZE: u32 = 64;
const GATED: u32 = 1;

struct Params {
  inner: u32,
  gate_up_stride: u32,
  out_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_mul(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  let row = id.y;
  if (i >= params.inner) {
    return;
  }
  let gate = gate_up[row * params.gate_up_stride + i];
  out[row * params.out_stride + i] = gate_of(gate) * gate_up[row * params.gate_up_stride + params.inner + i];
}
