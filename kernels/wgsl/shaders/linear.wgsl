// Shared part of the four product kernels: the uniform, the bindings, and how a sum becomes an output; appended to the kernels whose
// `uses` has 'linear'. linear_kernels.ts declares the contract.
//
//   x        [rows][x_stride] f32, padded with zeros to whole groups of 32
//   weight   [outputs][inner] in FORMAT, the slice that starts at `first_output`
//   bias     [all outputs]    f32, read when has_bias is 1; with EXPERTS [experts][outputs]
//   norm     [x_stride]       f32, read by kernels that normalise x on the way in
//   step     the step's header; [count_at] is the number of rows
//   out      [rows][out_stride] f32
//   EXPERTS  1: step is the routing of a mixture (see number_expert_slots.wgsl), whose items are rows of one expert each;
//            [count_at] is the number of items, which start at items_at; the slice has num_experts experts from first_expert on,
//            of `outputs` outputs each
//   PERMUTED 1, with EXPERTS: x is in the order of rows, not of expert slots: step has the row of each expert slot from order_at on
//   GATED    over 0: outputs come in pairs (gate, up); out[r, o / 2] = gated(gate, up)

const GATED: u32 = 0;
const UNROLLED: u32 = 1;
const EXPERTS: u32 = 0;
const PERMUTED: u32 = 0;

struct Params {
  outputs: u32,
  first_output: u32,
  quads: u32,
  scales_per_output: u32,
  x_stride: u32,
  out_stride: u32,
  has_bias: u32,
  is_accumulating: u32,
  count_at: u32,
  grid_y: u32,
  half_outputs: u32,
  inverse_norm_width: f32,
  epsilon: f32,
  scale: f32,
  items_at: u32,
  first_expert: u32,
  num_experts: u32,
  order_at: u32,
  alpha: f32,
  limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<vec4u>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<vec4f>;
@group(0) @binding(6) var<storage, read> step: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// Index in bias of the first output of the workgroup's expert; 0 without EXPERTS.
var<private> bias_at: u32 = 0;

struct Rows {
  first: u32,
  end: u32,
  // Outputs of the slice that come before those of these rows.
  base: u32,
}

// Returns the rows of the workgroup row `group`, `at_once` rows each; with EXPERTS the expert slots of item `group`. Empty past the
// last.
fn rows_of(group: u32, at_once: u32) -> Rows {
  if (EXPERTS == 0) {
    return Rows(group * at_once, step[params.count_at], 0u);
  }
  if (group >= step[params.count_at]) {
    return Rows(0u, 0u, 0u);
  }
  let item = params.items_at + 3 * group;
  let expert = step[item] - params.first_expert;
  bias_at = step[item] * params.outputs;
  if (expert >= params.num_experts) {
    return Rows(0u, 0u, 0u);
  }
  return Rows(step[item + 1], step[item + 1] + step[item + 2], expert * params.outputs);
}

// Returns the row of x for an expert slot when PERMUTED is 1; else its argument.
fn row_of(place: u32) -> u32 {
  if (PERMUTED == 1) {
    return step[params.order_at + place];
  }
  return place;
}

// Writes one output from its `sum`. `output` counts from the slice's first; `next` is the sum of the output after it, for pairs (gate,
// up).
fn finish(row: u32, output: u32, sum: f32, next: f32) {
  let absolute = params.first_output + output;
  if (GATED > 0) {
    if ((absolute & 1) == 1) {
      return;
    }
    let gate = sum + bias_of(absolute);
    let up = next + bias_of(absolute + 1);
    out[row * params.out_stride + (absolute >> 1)] = gated(gate, up, params.alpha, params.limit);
    return;
  }
  let at = row * params.out_stride + absolute;
  let value = sum + bias_of(absolute);
  // The multiply-add is an explicit fma, so that every kernel rounds it alike (E2).
  if (params.is_accumulating == 1) {
    out[at] = fma(value, params.scale, out[at]);
  } else {
    out[at] = value * params.scale;
  }
}

fn bias_of(output: u32) -> f32 {
  if (params.has_bias == 0) {
    return 0.0;
  }
  // Outputs are interleaved in pairs, but the bias is in the model's order: all gates, then all ups.
  if (GATED > 0) {
    return bias[bias_at + (output & 1) * params.half_outputs + (output >> 1)];
  }
  return bias[bias_at + output];
}

// A loop's end that the compiler does not know (no row has 2^31 values).
fn unknown(end: u32) -> u32 {
  return end + (params.x_stride >> 31);
}

// Hides a loop's end from the software driver's compiler, which would spend seconds on unrolling. Where UNROLLED is 1, kernel.ts
// removes the call.
fn bound(end: u32) -> u32 {
  return unknown(end);
}
