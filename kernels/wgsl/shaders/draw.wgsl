// draw: a token of each row of logits, as draw.ts defines it
//
//   logits      [samples][stride] bits of f32
//   step        header, samples [samples][8], draws [samples][21] u32: see draw_record.ts; masks of allowed tokens, a bit each
//   exp2_table  [4096] u32, weights at every 128th of an octave
//   pages       [pages][vocab] u32: biases, counts; a draw adds the token to its counts
//   slots       u32, the token where later steps find it
//   results     u32 words, from the sample's first: the token, and its logit when candidates are wanted
//
// One workgroup per sample. A thread has a range of ids for itself, so that sums by ascending id need no order among threads.

const WORKGROUP_SIZE: u32 = 256;

struct Params {
  vocab: u32,
  stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read> exp2_table: array<u32>;
@group(0) @binding(4) var<storage, read_write> pages: array<u32>;
@group(0) @binding(5) var<storage, read_write> slots: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;

const NO_TOKEN = 0xffffffffu;
const FORBIDDEN = i32(-2147483648);
const SCORE_LIMIT = 1072693248i;
const IN_PROMPT = 0x80000000u;

struct Draw {
  logits: u32,
  slot: u32,
  mantissa: u32,
  shift: u32,
  cutoff: u32,
  min_weight: u32,
  random: vec2u,
  bias: u32,
  counts: u32,
  allowed: u32,
  has_penalties: bool,
  above_mantissa: u32,
  above_shift: u32,
  below_mantissa: u32,
  below_shift: u32,
  presence: i32,
  frequency: i32,
  max_count: u32,
}

// The best of each thread, then of all.
var<workgroup> scores: array<i32, WORKGROUP_SIZE>;
var<workgroup> orders: array<i32, WORKGROUP_SIZE>;
var<workgroup> ids: array<u32, WORKGROUP_SIZE>;
var<workgroup> is_rotten: atomic<u32>;
// By thread: what its ids weigh, and how many of them are meant.
var<workgroup> sums: array<vec2u, WORKGROUP_SIZE>;
var<workgroup> tokens: array<u32, WORKGROUP_SIZE>;
// By digit of a weight: tokens, or the sum of weights in three pieces of 11 bits.
var<workgroup> bins: array<array<atomic<u32>, 3>, 256>;
struct Head {
  // Weights above are kept, and so many tokens that have this one.
  from_weight: u32,
  ties: u32,
  // Sum or number that is still to be reached.
  rest: vec2u,
}
var<workgroup> head: Head;
var<workgroup> num_weighed: u32;
// The thread whose ids the token is among; what is left of the target there, and of the ties.
var<workgroup> winner: u32;
var<workgroup> winner_target: vec2u;
var<workgroup> winner_ties: u32;

fn order_of(bits: u32) -> i32 {
  return bitcast<i32>(bits) ^ ((bitcast<i32>(bits) >> 31) & 0x7fffffff);
}

fn score_of(bits: u32) -> i32 {
  if (bits == 0xff800000u) {
    return FORBIDDEN;
  }
  // 1,023 and beyond, infinity included.
  if ((bits & 0x7fffffffu) >= 0x447fc000u) {
    return select(SCORE_LIMIT, -SCORE_LIMIT, bits >> 31 == 1);
  }
  return i32(bitcast<f32>(bits) * 1048576.0);
}

fn limited(score: i32) -> i32 {
  return clamp(score, -SCORE_LIMIT, SCORE_LIMIT);
}

fn scaled(score: i32, mantissa: u32, shift: u32) -> i32 {
  let value = wide_shift(wide_mul(u32(score), mantissa), shift);
  return i32(select(min(value.x, u32(SCORE_LIMIT)), u32(SCORE_LIMIT), value.y > 0));
}

fn score_at(draw: ptr<function, Draw>, id: u32) -> i32 {
  var score = score_of(logits[(*draw).logits + id]);
  if (score == FORBIDDEN) {
    return FORBIDDEN;
  }
  if ((*draw).bias != 0) {
    let added = bitcast<i32>(pages[(*draw).bias - 1 + id]);
    if (added == FORBIDDEN) {
      return FORBIDDEN;
    }
    score = limited(score + added);
  }
  if ((*draw).has_penalties && (*draw).counts != 0) {
    let word = pages[(*draw).counts - 1 + id];
    if (word != 0) {
      if (score > 0) {
        score = scaled(score, (*draw).above_mantissa, (*draw).above_shift);
      } else {
        score = -scaled(-score, (*draw).below_mantissa, (*draw).below_shift);
      }
      let count = word & ~IN_PROMPT;
      if (count > 0) {
        score = limited(score - (*draw).frequency * i32(min(count, (*draw).max_count)));
        score = limited(score - (*draw).presence);
      }
    }
  }
  if ((*draw).allowed != 0 && ((step[(*draw).allowed + (id >> 5)] >> (id & 31)) & 1) == 0) {
    return FORBIDDEN;
  }
  return score;
}

// 0 when it is not drawn.
fn weight_at(draw: ptr<function, Draw>, id: u32, highest: i32) -> u32 {
  let score = score_at(draw, id);
  let below = u32(highest - score);
  if (score == FORBIDDEN || below >= (*draw).cutoff) {
    return 0;
  }
  let octaves = wide_shift(wide_mul(below, (*draw).mantissa), (*draw).shift).x;
  let share = 65536 - (((octaves & 8191) * 45304) >> 20);
  let weight = wide_shift(wide_add(wide_mul(exp2_table[octaves >> 13], share), vec2u(0x8000, 0)), 16).x;
  return select(0, weight, weight >= (*draw).min_weight);
}

fn is_better(a: u32, b: u32) -> bool {
  if (scores[a] != scores[b]) {
    return scores[a] > scores[b];
  }
  if (scores[a] == FORBIDDEN) {
    return false;
  }
  return orders[a] > orders[b] || (orders[a] == orders[b] && ids[a] < ids[b]);
}

// Rounds over the weights: their sum; four digits of the head of top_k and its sum; as many of top_p; then the token.
const WEIGH = 0u;
const TOP_K = 5u;
const TOP_P = 10u;
const WALK = 11u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn draw(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let sample = workgroup.x;
  let at = step[7] + 21 * sample;
  if (step[at] == 0) {
    return;
  }
  let result = step[step[6] + 8 * sample + 4];
  // What barriers depend on is read once more: `one` is uniform too, which the compiler cannot see.
  let mantissa = step[at + 2];
  let top_k = step[at + 6];
  let top_p = step[at + 7];
  let has_candidates = step[step[6] + 8 * sample + 1] > 0;
  var one: Draw;
  one.logits = sample * params.stride;
  one.slot = step[at + 1];
  one.mantissa = mantissa;
  one.shift = step[at + 3];
  one.cutoff = step[at + 4];
  one.min_weight = step[at + 5];
  one.random = vec2u(step[at + 9], step[at + 8]);
  one.bias = step[at + 10];
  one.counts = step[at + 11];
  one.allowed = step[at + 12];
  one.has_penalties = step[at + 13] != 0;
  one.above_mantissa = step[at + 14];
  one.above_shift = step[at + 15];
  one.below_mantissa = step[at + 16];
  one.below_shift = step[at + 17];
  one.presence = bitcast<i32>(step[at + 18]);
  one.frequency = bitcast<i32>(step[at + 19]);
  one.max_count = step[at + 20];
  let each = (params.vocab + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
  let first = min(thread * each, params.vocab);
  let last = min(first + each, params.vocab);

  // Nobody else does: what is in a workgroup's memory before it begins is anybody's.
  if (thread == 0) {
    atomicStore(&is_rotten, 0);
  }
  workgroupBarrier();
  var best_score = FORBIDDEN;
  var best_order = 0;
  var best_id = NO_TOKEN;
  for (var id = first; id < last; id++) {
    let bits = logits[one.logits + id];
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      atomicStore(&is_rotten, 1);
    }
    let score = score_at(&one, id);
    if (score == FORBIDDEN || score < best_score) {
      continue;
    }
    let order = order_of(bits);
    if (score > best_score || order > best_order) {
      best_score = score;
      best_order = order;
      best_id = id;
    }
  }
  scores[thread] = best_score;
  orders[thread] = best_order;
  ids[thread] = best_id;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half && is_better(thread + half, thread)) {
      scores[thread] = scores[thread + half];
      orders[thread] = orders[thread + half];
      ids[thread] = ids[thread + half];
    }
    workgroupBarrier();
  }
  if (thread == 0) {
    winner = select(ids[0], NO_TOKEN, atomicLoad(&is_rotten) == 1);
  }
  let best = workgroupUniformLoad(&winner);
  if (best == NO_TOKEN || mantissa == 0) {
    if (thread == 0) {
      finish(&one, best, result, has_candidates);
    }
    return;
  }
  let highest = scores[0];

  if (thread == 0) {
    head.from_weight = 0;
    head.ties = 0;
  }
  // One loop over the weights for all that is done with them, so that the compiler has it once.
  for (var round = 0u; round <= WALK; round++) {
    let is_top_k = round > WEIGH && round <= TOP_K;
    let is_top_p = round > TOP_K && round <= TOP_P;
    if ((is_top_k && (top_k == 0 || top_k >= workgroupUniformLoad(&num_weighed))) || (is_top_p && top_p == 0)) {
      continue;
    }
    let digit_of = (round - 1) % 5;
    let is_digit = (is_top_k || is_top_p) && digit_of < 4;
    let shift = 24 - 8 * digit_of;
    for (var piece = 0; piece < 3; piece++) {
      atomicStore(&bins[thread][piece], 0);
    }
    workgroupBarrier();

    let bound = head.from_weight;
    var ties_left = winner_ties;
    var rest = winner_target;
    var sum = vec2u(0);
    var above = 0u;
    var ties = 0u;
    let end = select(last, first, round == WALK && thread != winner);
    for (var id = first; id < end; id++) {
      let weight = weight_at(&one, id, highest);
      if (weight == 0) {
        continue;
      }
      if (is_digit) {
        if (digit_of > 0 && (weight ^ bound) >> (shift + 8) != 0) {
          continue;
        }
        let digit = (weight >> shift) & 255;
        if (is_top_p) {
          atomicAdd(&bins[digit][0], weight & 2047);
          atomicAdd(&bins[digit][1], (weight >> 11) & 2047);
          atomicAdd(&bins[digit][2], weight >> 22);
        } else {
          atomicAdd(&bins[digit][0], 1);
        }
        continue;
      }
      if (weight == bound) {
        ties++;
        if (round == WALK && ties > ties_left) {
          continue;
        }
      }
      if (weight > bound) {
        sum = wide_add(sum, vec2u(weight, 0));
        above++;
      }
      if (round == WALK && weight >= bound) {
        if (wide_less(rest, vec2u(weight, 0))) {
          finish(&one, id, result, has_candidates);
          break;
        }
        rest = wide_sub(rest, vec2u(weight, 0));
      }
    }
    workgroupBarrier();

    if (is_digit) {
      if (thread == 0) {
        take_digit(shift, is_top_p);
      }
    } else {
      sums[thread] = sum;
      tokens[thread] = ties;
      ids[thread] = above;
      workgroupBarrier();
      if (thread == 0) {
        take_sums(round, top_k, top_p, one.random);
      }
    }
    workgroupBarrier();
  }
}

// The digit that `head` ends at, from the highest down.
fn take_digit(shift: u32, is_sum: bool) {
  var rest = head.rest;
  var digit = 255u;
  for (; digit > 0; digit--) {
    var its = vec2u(atomicLoad(&bins[digit][0]), 0);
    its = wide_add(its, wide_mul(atomicLoad(&bins[digit][1]), 1u << 11));
    its = wide_add(its, wide_mul(atomicLoad(&bins[digit][2]), 1u << 22));
    if (!wide_less(its, rest)) {
      break;
    }
    rest = wide_sub(rest, its);
  }
  head.rest = rest;
  head.from_weight |= digit << shift;
  if (shift == 0) {
    head.ties = rest.x;
    if (is_sum) {
      head.ties = wide_ceil_div(rest, head.from_weight);
    }
  }
}

// What follows from the sums of what is kept: where the next head ends, and at last which thread has the token.
fn take_sums(round: u32, top_k: u32, top_p: u32, random: vec2u) {
  var sum = wide_mul(head.from_weight, head.ties);
  var count = 0u;
  for (var i = 0u; i < WORKGROUP_SIZE; i++) {
    sum = wide_add(sum, sums[i]);
    count += ids[i];
  }
  if (round == WEIGH) {
    num_weighed = count;
    head.rest = vec2u(top_k, 0);
  }
  if (top_p > 0 && round <= TOP_K && (round == TOP_K || top_k == 0 || top_k >= num_weighed)) {
    let limit = wide_add(wide_mul(sum.x, top_p), vec2u(0xffffffffu, 0)).y;
    head.rest = wide_add(wide_mul(sum.y, top_p), vec2u(limit, 0));
    head.from_weight = 0;
  }
  // The last of the passes that is not left out has the last word.
  var target_sum = wide_mul_high(random, sum);
  var ties = head.ties;
  winner = WORKGROUP_SIZE - 1;
  for (var i = 0u; i < WORKGROUP_SIZE; i++) {
    let its_ties = min(tokens[i], ties);
    let its = wide_add(sums[i], wide_mul(head.from_weight, its_ties));
    if (wide_less(target_sum, its)) {
      winner = i;
      break;
    }
    target_sum = wide_sub(target_sum, its);
    ties -= its_ties;
  }
  winner_target = target_sum;
  winner_ties = ties;
}

fn finish(one: ptr<function, Draw>, token: u32, result: u32, has_candidates: bool) {
  results[result] = token;
  slots[(*one).slot] = token;
  if (token == NO_TOKEN) {
    return;
  }
  if (has_candidates) {
    results[result + 1] = logits[(*one).logits + token];
  }
  if ((*one).counts != 0) {
    pages[(*one).counts - 1 + token] += 1;
  }
}
