// permute: out[expert slot, :] = x[order[expert slot], :]
//
//   x, out   [rows or expert slots][stride] f32
//   routing  from order_at [expert slots] u32: rows
//
// One workgroup per expert slot, folded over x and y.

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  stride: u32,
  order_at: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> routing: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn permute(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) num: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let quads = params.stride / 4;
  let expert_slot = workgroup.y * num.x + workgroup.x;
  let row = routing[params.order_at + expert_slot];
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    out[expert_slot * quads + i] = x[row * quads + i];
  }
}
