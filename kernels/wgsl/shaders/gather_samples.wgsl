// gather_samples: out[s, :] = x[row of sample s, :]
//
//   x, out  [rows or samples][stride] f32
//   step    header, samples [samples][8] u32: row, candidates, first asked, asked, first result word
//
// One workgroup per sample.

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gather_samples(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let quads = params.stride / 4;
  let row = step[step[6] + 8 * workgroup.x];
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    out[workgroup.x * quads + i] = x[row * quads + i];
  }
}
