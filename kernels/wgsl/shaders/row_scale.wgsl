// 1 / sqrt(mean(x[r, :]^2) + epsilon) of one row, for the whole workgroup; appended to the kernels that say `uses: ['row_scale']`, so that
// a product that normalises by itself and rms_norm have the same bits (E2).
//
// Each thread sums the squares of every WORKGROUP_SIZE-th vector; mean_scale.wgsl adds them up.

const WORKGROUP_SIZE: u32 = 128;

// `first` counts vectors of x; the row's padding is zero.
fn row_scale(first: u32, quads: u32, inverse_width: f32, epsilon: f32, thread: u32) -> f32 {
  var sum = 0.0;
  for (var i = thread; i < quads; i += WORKGROUP_SIZE) {
    let v = x[first + i];
    sum = fma(v.x, v.x, sum);
    sum = fma(v.y, v.y, sum);
    sum = fma(v.z, v.z, sum);
    sum = fma(v.w, v.w, sum);
  }
  return mean_scale(sum, inverse_width, epsilon, thread);
}
