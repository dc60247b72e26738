// soft_cap: x[r, i] = cap * tanh(x[r, i] / cap)
//
//   x  [rows][stride] f32
//
// One thread per vector of a row, grid (stride / 4 / WORKGROUP_SIZE, rows).

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  stride: u32,
  cap: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn soft_cap(@builtin(global_invocation_id) id: vec3u) {
  let quads = params.stride / 4;
  if (id.x >= quads) {
    return;
  }
  let at = id.y * quads + id.x;
  let v = x[at];
  x[at] = vec4f(capped(v.x, params.cap), capped(v.y, params.cap), capped(v.z, params.cap), capped(v.w, params.cap));
}
