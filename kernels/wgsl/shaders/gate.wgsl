// The gates that a product's outputs pass through; appended to the kernels whose `uses` has 'gate' and that have the constant GATED.
//
//   GATED 1  SiLU: x / (1 + e^-x)
//   GATED 2  GELU in its tanh form, x * (1 + tanh(z)) / 2, which is x / (1 + e^(-2z)). Its multiply-add is an explicit fma, so that
//            every kernel rounds it alike (E2).
//   GATED 3  clamped SwiGLU: (u + 1) * g / (1 + e^(-alpha * g)), g at most `limit`, u between -limit and limit
//   GATED 4  none: the gate itself

// The product of gate and up; only GATED 3 reads `alpha` and `limit`.
fn gated(gate: f32, up: f32, alpha: f32, limit: f32) -> f32 {
  if (GATED == 3) {
    let g = min(gate, limit);
    return (clamp(up, -limit, limit) + 1.0) * (g / (1.0 + exp(-(alpha * g))));
  }
  if (GATED == 4) {
    return gate * up;
  }
  return gate_of(gate) * up;
}

fn gate_of(x: f32) -> f32 {
  if (GATED == 2) {
    let z = 0.7978845608028654 * fma(0.044715 * x * x, x, x);
    return x / (1.0 + exp(-2.0 * z));
  }
  return x / (1.0 + exp(-x));
}
