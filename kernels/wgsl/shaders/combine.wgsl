// combine: out[r, :] (+)= sum of weight * x[expert slot, :] over the expert slots of row r, best first
//
//   x, out  [expert slots or rows][stride] f32
//   routes  [rows][routes_stride] u32: per_token weights as f32, then expert slots
//
// One workgroup per row.

const WORKGROUP_SIZE: u32 = 128;

struct Params {
  stride: u32,
  routes_stride: u32,
  per_token: u32,
  is_accumulating: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> routes: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn combine(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let quads = params.stride / 4;
  let row = workgroup.x;
  let own = row * params.routes_stride;
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    var sum = vec4f();
    for (var choice = 0u; choice < params.per_token; choice++) {
      let weight = bitcast<f32>(routes[own + choice]);
      sum = fma(vec4f(weight), x[routes[own + params.per_token + choice] * quads + i], sum);
    }
    let at = row * quads + i;
    out[at] = select(sum, out[at] + sum, params.is_accumulating == 1);
  }
}
