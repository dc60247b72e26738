// Shared part of the sampling kernels: the bindings, a sample's parameters, fixed-point logits and weights as sampling.ts defines
// them; appended to the kernels whose `uses` has 'sampling'. ops/sample.ts has the order of the kernels.
//
//   logits      [samples][stride] bits of f32
//   step        header, samples [samples][8], sampler slots [samples][SAMPLE_PARAMS_WORDS] u32: SampleParams, made from the fields in
//               sampler_slot.ts; masks of allowed tokens, one bit per token
//   exp2_table  [4096] u32, weights at every 128th of a log2 weight
//   pages       [pages][vocab] u32: biases, counts; a sample adds the token to its counts
//   slots       u32, the sampled tokens, for later steps
//   results     u32 words, from the sample's first: the token, and its logit when candidates are wanted
//   state       of a sample, from sample * sample_words: bests [tiles][4]: fixed-point logit, order, id, whether there is a NaN;
//               sums [tiles][4]: weights above the head's last (64 bits), how many are equal to it; heads [5][8]; bins [8192][3]:
//               tokens, and the sum of their weights (64 bits)
//
// A tile is TILE ids. Sums are of integers, so their order does not matter.

const WORKGROUP_SIZE: u32 = 256;
const UNROLLED: u32 = 1;

struct Params {
  vocab: u32,
  stride: u32,
  tiles: u32,
  sample_words: u32,
  round: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read> exp2_table: array<u32>;
@group(0) @binding(4) var<storage, read_write> pages: array<u32>;
@group(0) @binding(5) var<storage, read_write> slots: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;
@group(0) @binding(7) var<storage, read_write> state: array<atomic<u32>>;

const TILE = 2048u;
const WORKGROUP_SIZE_HALF = WORKGROUP_SIZE / 2;
const IDS_PER_THREAD = TILE / WORKGROUP_SIZE;
const NO_TOKEN = 0xffffffffu;
const FORBIDDEN = i32(-2147483648);
const FIXED_LOGIT_LIMIT = 1072693248i;
const IN_PROMPT = 0x80000000u;
// Threads whose sums are summed before one thread looks for the place where a sum is reached.
const GROUP = 16u;
const GROUPS = WORKGROUP_SIZE / GROUP;

// End of the tokens that top_k or top_p keeps: all tokens with weights above from_weight, and `ties` tokens with exactly from_weight.
struct Head {
  from_weight: u32,
  ties: u32,
  // Sum or number that is still to be reached, and the sum of the weights above.
  rest: vec2u,
  above: vec2u,
}

// Best token per thread; after take_best, index 0 has the best of the workgroup.
var<workgroup> fixed_logits: array<i32, WORKGROUP_SIZE>;
var<workgroup> orders: array<i32, WORKGROUP_SIZE>;
var<workgroup> ids: array<u32, WORKGROUP_SIZE>;
var<workgroup> has_nan: atomic<u32>;
// Sums of weights and numbers of tokens, per thread and per group of GROUP threads.
var<workgroup> sums: array<vec2u, WORKGROUP_SIZE>;
var<workgroup> tokens: array<u32, WORKGROUP_SIZE>;
var<workgroup> group_sums: array<vec2u, GROUPS>;
var<workgroup> group_tokens: array<u32, GROUPS>;

fn params_of(sample: u32) -> SampleParams {
  var one = sample_params_at(step[7] + SAMPLE_PARAMS_WORDS * sample);
  one.logits = sample * params.stride;
  return one;
}

fn order_of(bits: u32) -> i32 {
  return bitcast<i32>(bits) ^ ((bitcast<i32>(bits) >> 31) & 0x7fffffff);
}

fn fixed_logit_of(bits: u32) -> i32 {
  if (bits == 0xff800000u) {
    return FORBIDDEN;
  }
  // Magnitudes of 1,023 and more, infinity included, are clamped.
  if ((bits & 0x7fffffffu) >= 0x447fc000u) {
    return select(FIXED_LOGIT_LIMIT, -FIXED_LOGIT_LIMIT, bits >> 31 == 1);
  }
  return i32(bitcast<f32>(bits) * 1048576.0);
}

fn limited(fixed_logit: i32) -> i32 {
  return clamp(fixed_logit, -FIXED_LOGIT_LIMIT, FIXED_LOGIT_LIMIT);
}

fn scaled(fixed_logit: i32, mantissa: u32, shift: u32) -> i32 {
  let value = wide_shift(wide_mul(u32(fixed_logit), mantissa), shift);
  return i32(select(min(value.x, u32(FIXED_LOGIT_LIMIT)), u32(FIXED_LOGIT_LIMIT), value.y > 0));
}

fn fixed_logit_at(sample: ptr<function, SampleParams>, id: u32) -> i32 {
  var fixed_logit = fixed_logit_of(logits[(*sample).logits + id]);
  if (fixed_logit == FORBIDDEN) {
    return FORBIDDEN;
  }
  if ((*sample).bias != 0) {
    let added = bitcast<i32>(pages[(*sample).bias - 1 + id]);
    if (added == FORBIDDEN) {
      return FORBIDDEN;
    }
    fixed_logit = limited(fixed_logit + added);
  }
  if ((*sample).has_penalties != 0 && (*sample).counts != 0) {
    let word = pages[(*sample).counts - 1 + id];
    if (word != 0) {
      if (fixed_logit > 0) {
        fixed_logit = scaled(fixed_logit, (*sample).above_mantissa, (*sample).above_shift);
      } else {
        fixed_logit = -scaled(-fixed_logit, (*sample).below_mantissa, (*sample).below_shift);
      }
      let count = word & ~IN_PROMPT;
      if (count > 0) {
        fixed_logit = limited(fixed_logit - (*sample).frequency * i32(min(count, (*sample).max_count)));
        fixed_logit = limited(fixed_logit - (*sample).presence);
      }
    }
  }
  if ((*sample).allowed != 0 && ((step[(*sample).allowed + (id >> 5)] >> (id & 31)) & 1) == 0) {
    return FORBIDDEN;
  }
  return fixed_logit;
}

// Returns the weight of a token; 0 when the token cannot be sampled.
fn weight_at(sample: ptr<function, SampleParams>, id: u32, highest: i32) -> u32 {
  let fixed_logit = fixed_logit_at(sample, id);
  let below = u32(highest - fixed_logit);
  if (fixed_logit == FORBIDDEN || below >= (*sample).cutoff) {
    return 0;
  }
  let log2_weights = wide_shift(wide_mul(below, (*sample).mantissa), (*sample).shift).x;
  let share = 65536 - (((log2_weights & 8191) * 45304) >> 20);
  let weight = wide_shift(wide_add(wide_mul(exp2_table[log2_weights >> 13], share), vec2u(0x8000, 0)), 16).x;
  return select(0, weight, weight >= (*sample).min_weight);
}

fn is_better(a: u32, b: u32) -> bool {
  if (fixed_logits[a] != fixed_logits[b]) {
    return fixed_logits[a] > fixed_logits[b];
  }
  if (fixed_logits[a] == FORBIDDEN) {
    return false;
  }
  return orders[a] > orders[b] || (orders[a] == orders[b] && ids[a] < ids[b]);
}

// Reduces the threads' best tokens to the best one, at index 0.
fn take_best(thread: u32) {
  workgroupBarrier();
  for (var half = bound(WORKGROUP_SIZE_HALF); half > 0; half /= 2) {
    if (thread < half && is_better(thread + half, thread)) {
      fixed_logits[thread] = fixed_logits[thread + half];
      orders[thread] = orders[thread + half];
      ids[thread] = ids[thread + half];
    }
    workgroupBarrier();
  }
}

// Reduces the best tokens of a sample's tiles, at most WORKGROUP_SIZE of them, to the best one, at index 0.
fn take_best_of_tiles(sample: u32, thread: u32) {
  if (thread == 0) {
    atomicStore(&has_nan, 0);
  }
  workgroupBarrier();
  fixed_logits[thread] = FORBIDDEN;
  ids[thread] = NO_TOKEN;
  if (thread < params.tiles) {
    let best = sample * params.sample_words + 4 * thread;
    fixed_logits[thread] = bitcast<i32>(atomicLoad(&state[best]));
    orders[thread] = bitcast<i32>(atomicLoad(&state[best + 1]));
    ids[thread] = atomicLoad(&state[best + 2]);
    if (atomicLoad(&state[best + 3]) != 0) {
      atomicStore(&has_nan, 1);
    }
  }
  take_best(thread);
}

fn sums_at(sample: u32, tile: u32) -> u32 {
  return sample * params.sample_words + 4 * (params.tiles + tile);
}

fn head_at(sample: u32, index: u32) -> u32 {
  return sample * params.sample_words + 8 * params.tiles + 8 * index;
}

fn load_head(at: u32) -> Head {
  return Head(
    atomicLoad(&state[at]),
    atomicLoad(&state[at + 1]),
    vec2u(atomicLoad(&state[at + 2]), atomicLoad(&state[at + 3])),
    vec2u(atomicLoad(&state[at + 4]), atomicLoad(&state[at + 5])),
  );
}

// Adds up `sums` and `tokens` by groups of GROUP threads, into group_sums and group_tokens.
fn sum_groups(thread: u32) {
  workgroupBarrier();
  if (thread < GROUPS) {
    var sum = vec2u(0);
    var count = 0u;
    for (var i = 0u; i < bound(GROUP); i++) {
      sum = wide_add(sum, sums[thread * GROUP + i]);
      count += tokens[thread * GROUP + i];
    }
    group_sums[thread] = sum;
    group_tokens[thread] = count;
  }
  workgroupBarrier();
}

// A loop's end that the compiler does not know: for the software driver, which would spend seconds on what it unrolls. Where UNROLLED is
// 1, kernel.ts leaves the call out.
fn bound(end: u32) -> u32 {
  return end + (params.tiles >> 31);
}
