// Softplus, one rounding order for every kernel (E2); appended to the kernels that say `uses: ['softplus']`.

// max(x, 0) + ln(1 + t) with t = e^-|x|; ln(1 + t) = 2 artanh(t / (2 + t)), whose argument is at most 1/3.
fn softplus(x: f32) -> f32 {
  let t = exp(-abs(x));
  let s = t / (2.0 + t);
  let z = s * s;
  var series = fma(z, 1.0 / 15.0, 1.0 / 13.0);
  series = fma(series, z, 1.0 / 11.0);
  series = fma(series, z, 1.0 / 9.0);
  series = fma(series, z, 1.0 / 7.0);
  series = fma(series, z, 1.0 / 5.0);
  series = fma(series, z, 1.0 / 3.0);
  series = fma(series, z, 1.0);
  return fma(2.0 * s, series, max(x, 0.0));
}
