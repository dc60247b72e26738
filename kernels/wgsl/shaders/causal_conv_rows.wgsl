// causal_conv_rows: the outputs of causal_conv with one thread per row and channel, for segments of many rows
//
//   x       [rows][x_stride] f32
//   out     [rows][out_stride] f32
//   states  [slots][slot_values] f32; the window, [TAPS - 1][channels], lies at the beginning, the oldest input first
//
// Grid (channels / WORKGROUP_SIZE, rows).

const WORKGROUP_SIZE: u32 = 64;

struct Params {
  channels: u32,
  x_stride: u32,
  out_stride: u32,
  slot_values: u32,
  has_bias: u32,
  is_activated: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read> states: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn causal_conv_rows(@builtin(global_invocation_id) id: vec3u) {
  let channel = id.x;
  let row = id.y;
  if (channel >= params.channels) {
    return;
  }
  let segment = segment_of(row);
  var window = vec4f(0);
  for (var tap = 0u; tap < TAPS; tap++) {
    let back = TAPS - 1 - tap;
    var input = 0.0;
    if (row - segment.first_row >= back) {
      input = x[(row - back) * params.x_stride + channel];
    } else if (segment.from_slot != NO_SLOT) {
      let age = row + TAPS - 1 - segment.first_row - back;
      input = states[segment.from_slot * params.slot_values + age * params.channels + channel];
    }
    window = vec4f(window.yzw, input);
  }
  var added = 0.0;
  if (params.has_bias == 1) {
    added = bias[channel];
  }
  out[row * params.out_stride + channel] = convolved(taps_of(channel), window, added, params.is_activated == 1);
}
