// gated_mul: out[r, i] = gated(gates[r, i], ups[r, first_up + i])
//
//   gates  [rows][gate_stride] f32
//   ups    [rows][up_stride]   f32; often the same buffer
//   out    [rows][out_stride]  f32
//
// One thread per output, grid (inner / WORKGROUP_SIZE, rows). Only for programs whose product does not do it by itself.

const WORKGROUP_SIZE: u32 = 64;
const GATED: u32 = 1;

struct Params {
  inner: u32,
  gate_stride: u32,
  up_stride: u32,
  first_up: u32,
  out_stride: u32,
  alpha: f32,
  limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> ups: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_mul(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  let row = id.y;
  if (i >= params.inner) {
    return;
  }
  let gate = gates[row * params.gate_stride + i];
  let up = ups[row * params.up_stride + params.first_up + i];
  out[row * params.out_stride + i] = gated(gate, up, params.alpha, params.limit);
}
