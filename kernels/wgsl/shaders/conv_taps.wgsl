// One output of a causal convolution, in one order (E2); appended to the kernels that say `uses: ['conv_taps']`.
//
//   weight  [channels][32] f32, TAPS inputs of each channel
//
// The window has the newest input last; inputs and weights before the first tap are 0.

const TAPS: u32 = 4;

fn taps_of(channel: u32) -> vec4f {
  let at = 32 * channel;
  if (TAPS == 2) {
    return vec4f(0, 0, weight[at], weight[at + 1]);
  }
  if (TAPS == 3) {
    return vec4f(0, weight[at], weight[at + 1], weight[at + 2]);
  }
  return vec4f(weight[at], weight[at + 1], weight[at + 2], weight[at + 3]);
}

fn convolved(taps: vec4f, window: vec4f, added: f32, is_activated: bool) -> f32 {
  var sum = fma(taps.x, window.x, added);
  sum = fma(taps.y, window.y, sum);
  sum = fma(taps.z, window.z, sum);
  sum = fma(taps.w, window.w, sum);
  if (is_activated) {
    return sum / (1.0 + exp(-sum));
  }
  return sum;
}
