// qk_norm: rms_norm, in place, of spans of qkv[r, :]: q_spans of q_width values, then k_spans of k_width, then others as wide, whose weight
// is 1
//
//   x       qkv [rows][stride] f32
//   weight  [q_width] then [k_width] f32
//
// One workgroup per row and span. Widths are multiples of 4.

struct Params {
  stride: u32,
  q_spans: u32,
  q_width: u32,
  k_spans: u32,
  k_width: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn qk_norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let span = workgroup.y;
  let is_key = span >= params.q_spans;
  let is_value = span >= params.q_spans + params.k_spans;
  let width = select(params.q_width, params.k_width, is_key);
  let spans_before = select(span * params.q_width, params.q_spans * params.q_width + (span - params.q_spans) * params.k_width, is_key);
  let first = (workgroup.x * params.stride + spans_before) / 4;
  let weights = select(0u, params.q_width / 4, is_key && !is_value);
  let scale = row_scale(first, width / 4, 1.0 / f32(width), params.epsilon, thread);
  for (var i = thread; i < width / 4; i += WORKGROUP_SIZE) {
    let normed = x[first + i] * scale;
    x[first + i] = select(weight[weights + i] * normed, normed, is_value);
  }
}
