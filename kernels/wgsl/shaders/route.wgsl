// route: chooses the best PER_TOKEN of logits[r, experts], ties to the lower, and computes their softmax: over all experts, or over the
// chosen ones when `is_normalised`. With SIGMOID the score of an expert is sigmoid(logit), experts are chosen by score + bias, from the
// GROUPS_PER_TOKEN groups whose two best have the greatest sum, and a weight is the score, divided by the sum of the chosen ones when
// `is_normalised`. Weights are multiplied by `scale`, and with HAS_SCALES by the value of their expert
//
//   logits   [rows][logits_stride] f32
//   bias     [EXPERTS] f32, read with HAS_BIAS; expert_scales likewise, with HAS_SCALES
//   routes   [rows][routes_stride] u32: PER_TOKEN weights as f32, best first; number_expert_slots writes the expert slots after them
//   routing  from picks_at [rows][PER_TOKEN] u32: experts
//
// One workgroup per row. In a step of one row, its expert slots are numbered here: each expert that the row goes to is an item.

const WORKGROUP_SIZE: u32 = 64;
const EXPERTS: u32 = 8;
const PER_TOKEN: u32 = 2;
const SIGMOID: u32 = 0;
const HAS_BIAS: u32 = 0;
const HAS_SCALES: u32 = 0;
const GROUPS: u32 = 1;
const GROUPS_PER_TOKEN: u32 = 1;

struct Params {
  logits_stride: u32,
  routes_stride: u32,
  picks_at: u32,
  order_at: u32,
  items_at: u32,
  is_normalised: u32,
  scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> expert_scales: array<f32>;
@group(0) @binding(4) var<storage, read_write> routes: array<u32>;
@group(0) @binding(5) var<storage, read_write> routing: array<u32>;

const NONE = 0xffffffffu;
const LOWEST = -1e30;
const GROUP_SIZE = EXPERTS / GROUPS;

// The choice compares these values: logits, or scores with their bias.
var<workgroup> values: array<f32, EXPERTS>;
var<workgroup> group_sums: array<f32, GROUPS>;
var<workgroup> is_taken: array<u32, EXPERTS>;
var<workgroup> best_value: array<f32, WORKGROUP_SIZE>;
var<workgroup> best_expert: array<u32, WORKGROUP_SIZE>;
var<workgroup> sums: array<f32, WORKGROUP_SIZE>;
var<workgroup> chosen: array<f32, PER_TOKEN>;
var<workgroup> picks: array<u32, PER_TOKEN>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn route(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) num: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = workgroup.x;
  for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
    var value = logits[row * params.logits_stride + expert];
    if (SIGMOID == 1) {
      value = sigmoid(value);
      if (HAS_BIAS == 1) {
        value += bias[expert];
      }
    }
    values[expert] = value;
    is_taken[expert] = 0u;
  }
  workgroupBarrier();
  if (GROUPS_PER_TOKEN < GROUPS) {
    for (var group = thread; group < GROUPS; group += WORKGROUP_SIZE) {
      group_sums[group] = best_two(group);
    }
    workgroupBarrier();
    for (var group = thread; group < GROUPS; group += WORKGROUP_SIZE) {
      if (better_groups(group) >= GROUPS_PER_TOKEN) {
        for (var i = 0u; i < unknown(GROUP_SIZE); i++) {
          is_taken[group * GROUP_SIZE + i] = 1u;
        }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < PER_TOKEN; i++) {
    var value = 0.0;
    var best = NONE;
    for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
      if (is_taken[expert] == 0u && (best == NONE || values[expert] > value)) {
        value = values[expert];
        best = expert;
      }
    }
    best_value[thread] = value;
    best_expert[thread] = best;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
      if (thread < half) {
        let mine = best_expert[thread];
        let other = best_expert[thread + half];
        let is_better = best_value[thread + half] > best_value[thread];
        let is_tie = best_value[thread + half] == best_value[thread] && other < mine;
        if (other != NONE && (mine == NONE || is_better || is_tie)) {
          best_value[thread] = best_value[thread + half];
          best_expert[thread] = other;
        }
      }
      workgroupBarrier();
    }
    if (thread == 0) {
      chosen[i] = best_value[0];
      if (SIGMOID == 1) {
        chosen[i] = sigmoid(logits[row * params.logits_stride + best_expert[0]]);
      }
      is_taken[best_expert[0]] = 1u;
      picks[i] = best_expert[0];
      routing[params.picks_at + row * PER_TOKEN + i] = best_expert[0];
    }
    workgroupBarrier();
  }
  let highest = chosen[0];
  var sum = 0.0;
  for (var expert = thread; SIGMOID == 0 && expert < EXPERTS; expert += WORKGROUP_SIZE) {
    sum += exp(values[expert] - highest);
  }
  sums[thread] = sum;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      sums[thread] += sums[thread + half];
    }
    workgroupBarrier();
  }
  if (thread < PER_TOKEN) {
    var total = select(sums[0], 1.0, SIGMOID == 1);
    if (params.is_normalised == 1) {
      total = 0.0;
      for (var i = 0u; i < PER_TOKEN; i++) {
        total += share_of(i, highest);
      }
      if (SIGMOID == 1) {
        total += 1e-20;
      }
    }
    var weight = share_of(thread, highest) / total * params.scale;
    if (HAS_SCALES == 1) {
      weight *= expert_scales[picks[thread]];
    }
    routes[row * params.routes_stride + thread] = bitcast<u32>(weight);
  }
  if (num.x == 1 && thread < PER_TOKEN) {
    let expert = picks[thread];
    var expert_slot = 0u;
    for (var i = 0u; i < PER_TOKEN; i++) {
      expert_slot += select(0u, 1u, picks[i] < expert);
    }
    routes[PER_TOKEN + thread] = expert_slot;
    routing[params.order_at + expert_slot] = 0u;
    let item = params.items_at + 3 * expert_slot;
    routing[item] = expert;
    routing[item + 1] = expert_slot;
    routing[item + 2] = 1u;
    if (thread == 0) {
      routing[0] = PER_TOKEN;
    }
  }
}

fn sigmoid(value: f32) -> f32 {
  return 1.0 / (1.0 + exp(-value));
}

// Weight of the i-th chosen expert before it is divided by the sum.
fn share_of(i: u32, highest: f32) -> f32 {
  if (SIGMOID == 1) {
    return chosen[i];
  }
  return exp(chosen[i] - highest);
}

// Sum of the two highest values of a group; the highest alone where the group has one expert.
fn best_two(group: u32) -> f32 {
  var best = values[group * GROUP_SIZE];
  var second = select(0.0, LOWEST, GROUP_SIZE > 1);
  for (var i = 1u; i < unknown(GROUP_SIZE); i++) {
    let value = values[group * GROUP_SIZE + i];
    second = max(second, min(best, value));
    best = max(best, value);
  }
  return best + second;
}

// Number of groups that are chosen before this one.
fn better_groups(group: u32) -> u32 {
  let own = group_sums[group];
  var count = 0u;
  for (var other = 0u; other < unknown(GROUPS); other++) {
    let value = group_sums[other];
    count += select(0u, 1u, value > own || (value == own && other < group));
  }
  return count;
}

// A loop's end that the compiler does not know (no row has 2^31 values).
fn unknown(end: u32) -> u32 {
  return end + (params.logits_stride >> 31);
}
