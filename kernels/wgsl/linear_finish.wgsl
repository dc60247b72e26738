// What every product does with its sums; appended to the kernels that say `uses: ['linear_finish']`.
//
// `output` counts from the slice's first; `next` is the sum of the output after it, for pairs (gate, up).

fn bias_of(output: u32) -> f32 {
  if (params.has_bias == 0) {
    return 0.0;
  }
  // Interleaved pairs: the bias lies as the model has it, gates first.
  if (GATED == 1) {
    return bias[(output & 1) * params.half_outputs + (output >> 1)];
  }
  return bias[output];
}

fn finish(row: u32, output: u32, sum: f32, next: f32) {
  let absolute = params.first_output + output;
  if (GATED == 1) {
    if ((absolute & 1) == 1) {
      return;
    }
    let gate = sum + bias_of(absolute);
    let up = next + bias_of(absolute + 1);
    out[row * params.out_stride + (absolute >> 1)] = gate / (1.0 + exp(-gate)) * up;
    return;
  }
  let at = row * params.out_stride + absolute;
  var value = sum + bias_of(absolute);
  if (params.is_accumulating == 1) {
    value += out[at];
  }
  out[at] = value;
}

// A loop's end that the compiler does not know (no row has 2^31 values): for the software driver, which would spend seconds on what it
// unrolls. Where UNROLLED is 1, kernel.ts leaves the call out.
fn bound(end: u32) -> u32 {
  return end + (params.x_stride >> 31);
}
