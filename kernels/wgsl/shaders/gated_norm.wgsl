// gated_norm: rms_norm, in place, of spans of x[r, :], with a gate after the norm, or before it if is_gate_first
//
//   x       [rows][stride] f32: spans of `width` values
//   gate    [rows][gate_stride] f32: the spans' gates, from `first` on
//   weight  [width] f32, or [spans][width] with weight_stride values from one span's to the next
//
// One workgroup per row and span. Widths and `first` are multiples of 4; GATED is 1 (gate.wgsl).

const GATED: u32 = 1;

struct Params {
  stride: u32,
  gate_stride: u32,
  first: u32,
  width: u32,
  weight_stride: u32,
  is_gate_first: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4f>;

fn gates_of(g: vec4f) -> vec4f {
  return vec4f(gate_of(g.x), gate_of(g.y), gate_of(g.z), gate_of(g.w));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let quads = params.width / 4;
  let span = workgroup.y;
  let first = workgroup.x * params.stride / 4 + span * quads;
  let gates = (workgroup.x * params.gate_stride + params.first) / 4 + span * quads;
  let weights = span * params.weight_stride / 4;
  if (params.is_gate_first == 1) {
    for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
      x[first + i] *= gates_of(gate[gates + i]);
    }
  }
  // A thread reads back only what it has written.
  let scale = row_scale(first, quads, 1.0 / f32(params.width), params.epsilon, thread);
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    var normed = weight[weights + i] * (x[first + i] * scale);
    if (params.is_gate_first == 0) {
      normed *= gates_of(gate[gates + i]);
    }
    x[first + i] = normed;
  }
}
