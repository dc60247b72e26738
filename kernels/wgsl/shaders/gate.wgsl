// What makes a gate of a product's output; appended to the kernels that say `uses: ['gate']`.

fn silu(x: f32) -> f32 {
  return x / (1.0 + exp(-x));
}

// GELU in its tanh form: (1 + tanh(z)) / 2 is 1 / (1 + e^(-2z)). Its multiply-add is said, so that every kernel rounds it alike (E2).
fn gelu(x: f32) -> f32 {
  let z = 0.7978845608028654 * fma(0.044715 * x * x, x, x);
  return x / (1.0 + exp(-2.0 * z));
}
