// cap * tanh(x / cap); appended to the kernels that say `uses: ['capped']`. Computed from e^(2z) with z within ±15, where tanh is 1 in
// f32, since a driver's tanh may overflow.

fn capped(x: f32, cap: f32) -> f32 {
  let z = clamp(x / cap, -15.0, 15.0);
  return cap * (1.0 - 2.0 / (1.0 + exp(2.0 * z)));
}
