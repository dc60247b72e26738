// causal_conv: the outputs of rows, and the windows that segments save
//
//   out[r, c] = sum over taps of weight[c, j] * x[r - TAPS + 1 + j, c] (+ bias[c]), through SiLU if is_activated
//
//   x       [rows][x_stride] f32
//   out     [rows][out_stride] f32
//   states  [slots][slot_values] f32; the window, [TAPS - 1][channels], lies at the beginning, the oldest input first
//
// One thread per channel of a segment, which computes its rows in their order if HAS_OUTPUTS, else only saves windows (after
// causal_conv_rows). The window that a segment begins with is read before any is written: it may lie in the same slot.

const WORKGROUP_SIZE: u32 = 64;
const HAS_OUTPUTS: u32 = 1;

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
@group(0) @binding(6) var<storage, read_write> states: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn causal_conv(@builtin(global_invocation_id) id: vec3u) {
  let channel = id.x;
  if (channel >= params.channels) {
    return;
  }
  let segment = segment_number(id.y);
  let channels = params.channels;
  // Inputs before the segment, the newest last.
  var begun = vec4f(0);
  if (segment.from_slot != NO_SLOT) {
    let at = segment.from_slot * params.slot_values + channel;
    for (var tap = 0u; tap < TAPS - 1; tap++) {
      begun = vec4f(begun.yzw, states[at + tap * channels]);
    }
  }
  let x_at = segment.first_row * params.x_stride + channel;
  if (HAS_OUTPUTS == 1) {
    let taps = taps_of(channel);
    var added = 0.0;
    if (params.has_bias == 1) {
      added = bias[channel];
    }
    var window = begun;
    for (var row = 0u; row < segment.rows; row++) {
      window = vec4f(window.yzw, x[x_at + row * params.x_stride]);
      out[(segment.first_row + row) * params.out_stride + channel] =
        convolved(taps, window, added, params.is_activated == 1);
    }
  }
  for (var save = 0u; save < segment.num_saves; save++) {
    let rows = step[segment.saves_at + 2 * save];
    var window = begun;
    for (var row = rows - min(rows, TAPS - 1); row < rows; row++) {
      window = vec4f(window.yzw, x[x_at + row * params.x_stride]);
    }
    let at = step[segment.saves_at + 2 * save + 1] * params.slot_values + channel;
    for (var tap = 0u; tap < TAPS - 1; tap++) {
      states[at + tap * channels] = window[tap + 5 - TAPS];
    }
  }
}
