// peak_read: how fast the device reads; every 16 bytes of `words` once
//
//   words  [quads] vec4u
//   sink   [workgroups] u32, so that no read is left out
//
// A thread reads `rounds` vectors, WORKGROUP_SIZE apart, so that a subgroup's loads lie side by side.

const WORKGROUP_SIZE: u32 = 256;

struct Params {
  rounds: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> words: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> sink: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn peak_read(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  var all = vec4u(0);
  let first = workgroup.x * params.rounds * WORKGROUP_SIZE + thread;
  for (var i = 0u; i < params.rounds; i++) {
    all ^= words[first + i * WORKGROUP_SIZE];
  }
  if ((all.x ^ all.y ^ all.z ^ all.w) == 0x12345678) {
    sink[workgroup.x] = thread;
  }
}
