// route: chooses the best PER_TOKEN of logits[r, experts], ties to the lower, and computes their softmax: over all experts, or over the
// chosen ones when `is_normalised`
//
//   logits   [rows][logits_stride] f32
//   routes   [rows][routes_stride] u32: PER_TOKEN weights as f32, best first; number_expert_slots writes the expert slots after them
//   routing  from picks_at [rows][PER_TOKEN] u32: experts
//
// One workgroup per row. In a step of one row, its expert slots are numbered here: each expert that the row goes to is an item.

const WORKGROUP_SIZE: u32 = 64;
const EXPERTS: u32 = 8;
const PER_TOKEN: u32 = 2;

struct Params {
  logits_stride: u32,
  routes_stride: u32,
  picks_at: u32,
  order_at: u32,
  items_at: u32,
  is_normalised: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> routes: array<u32>;
@group(0) @binding(3) var<storage, read_write> routing: array<u32>;

const NONE = 0xffffffffu;

var<workgroup> values: array<f32, EXPERTS>;
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
    values[expert] = logits[row * params.logits_stride + expert];
    is_taken[expert] = 0u;
  }
  workgroupBarrier();
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
      is_taken[best_expert[0]] = 1u;
      picks[i] = best_expert[0];
      routing[params.picks_at + row * PER_TOKEN + i] = best_expert[0];
    }
    workgroupBarrier();
  }
  let highest = chosen[0];
  var sum = 0.0;
  for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
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
    var total = sums[0];
    if (params.is_normalised == 1) {
      total = 0.0;
      for (var i = 0u; i < PER_TOKEN; i++) {
        total += exp(chosen[i] - highest);
      }
    }
    routes[row * params.routes_stride + thread] = bitcast<u32>(exp(chosen[thread] - highest) / total);
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
