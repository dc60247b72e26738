// 1 / sqrt(mean of squares + epsilon) from the threads' sums of squares, added up in one order (E2); appended to the kernels that say
// `uses: ['mean_scale']`. WORKGROUP_SIZE is a power of two.

var<workgroup> squares: array<f32, WORKGROUP_SIZE>;

fn mean_scale(sum: f32, inverse_width: f32, epsilon: f32, thread: u32) -> f32 {
  squares[thread] = sum;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      squares[thread] += squares[thread + half];
    }
    workgroupBarrier();
  }
  return inverseSqrt(fma(squares[0], inverse_width, epsilon));
}
