// peak_fma: how fast the device multiplies and adds; eight independent chains of vectors a thread
//
//   sink  [workgroups] u32, so that nothing is left out
//
// `rounds` times eight vector fma a thread: 64 operations a round.
alias Element = f32;

const WORKGROUP_SIZE: u32 = 256;

struct Params {
  rounds: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn peak_fma(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let factor = vec4<Element>(Element(f32(thread) * 1e-3));
  var a = factor;
  var b = factor + factor;
  var c = a + b;
  var d = b + b;
  var e = c + b;
  var f = c + c;
  var g = d + c;
  var h = d + d;
  for (var i = 0u; i < params.rounds; i++) {
    a = fma(a, factor, factor);
    b = fma(b, factor, factor);
    c = fma(c, factor, factor);
    d = fma(d, factor, factor);
    e = fma(e, factor, factor);
    f = fma(f, factor, factor);
    g = fma(g, factor, factor);
    h = fma(h, factor, factor);
  }
  let all = a + b + c + d + e + f + g + h;
  if (f32(all.x + all.y + all.z + all.w) == 0.12345678) {
    sink[workgroup.x] = thread;
  }
}
