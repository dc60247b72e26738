// sample_tiles: a round over all ids of each row of logits, TILE ids a workgroup; buffers as in sampling.wgsl
//
//   BEST       the best of a tile; clears the bins
//   WEIGH      needs the highest fixed-point logit: weights of a tile, their sum; and, for top_k and top_p, bins by their first 11 bits
//   K1, K2     bins by the next 11 bits, then the last 10, of the weights whose known bits equal those of the weight at which top_k ends
//   P1, P2     likewise for top_p
//   TILES      the sum of a tile's weights above the one at which the head ends, and the number of weights equal to it
//
// Each round reads the bins of the round before: every workgroup finds for itself where the head ends in them, and the first workgroup
// of a sample stores the result for the round after. Grid (tiles, samples).

// Bins by digit: the number of tokens, then the sums of the low and of the high 16 bits of their weights.
var<workgroup> bins: array<array<atomic<u32>, 3>, BINS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sample_tiles(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let tile = workgroup.x;
  let sample = workgroup.y;
  var one = params_of(sample);
  let mantissa = one.mantissa;
  let top_k = one.top_k;
  let top_p = one.top_p;
  let round = params.round;
  if (one.is_sampled == 0 || (round != BEST && mantissa == 0)) {
    return;
  }
  if (((round == K1 || round == K2) && top_k == 0) || ((round == P1 || round == P2) && top_p == 0)) {
    return;
  }
  let first = tile * TILE + thread;
  if (round == BEST) {
    let own = sample * params.sample_words + 4 * tile;
    find_best(&one, first, thread, own);
    if (mantissa != 0 && (top_k > 0 || top_p > 0)) {
      let each = (3 * ALL_BINS + params.tiles - 1) / params.tiles;
      let end = min((tile + 1) * each, 3 * ALL_BINS);
      for (var i = tile * each + thread; i < end; i += WORKGROUP_SIZE) {
        atomicStore(&state[bins_at(sample) + i], 0);
      }
    }
    return;
  }

  take_best_of_tiles(sample, thread);
  let highest = fixed_logits[0];
  // No token can be sampled; sample_choose writes NO_TOKEN.
  if (workgroupUniformLoad(&ids[0]) == NO_TOKEN) {
    return;
  }
  for (var i = thread; i < BINS; i += WORKGROUP_SIZE) {
    for (var slice = 0; slice < 3; slice++) {
      atomicStore(&bins[i][slice], 0);
    }
  }
  if (thread == 0) {
    head = Head(0, 0, vec2u(0), vec2u(0));
    is_active = 1;
  }
  workgroupBarrier();
  find_head(sample, round, top_k, top_p, thread);
  if (tile == 0 && thread == 0 && round > WEIGH) {
    keep_head(head_at(sample, round - K1));
  }
  if (workgroupUniformLoad(&is_active) == 0) {
    return;
  }

  let from_weight = head.from_weight;
  let is_digit = round > WEIGH && round < TILES;
  // Position of the digit; the bits from `above` on must equal those of the weight at which the head ends.
  var shift = 21u;
  var above = 32u;
  if (round == K1 || round == P1) {
    shift = 10;
    above = 21;
  }
  if (round == K2 || round == P2) {
    shift = 0;
    above = 10;
  }
  let has_bins = is_digit || (round == WEIGH && (top_k > 0 || top_p > 0));
  var sum = vec2u(0);
  var ties = 0u;
  for (var i = 0u; i < bound(IDS_PER_THREAD); i++) {
    let id = first + i * WORKGROUP_SIZE;
    if (id >= params.vocab) {
      continue;
    }
    let weight = weight_at(&one, id, highest);
    if (weight == 0) {
      continue;
    }
    if (has_bins && (!is_digit || (weight ^ from_weight) >> above == 0)) {
      let digit = (weight >> shift) & (select(BINS, LAST_BINS, shift == 0) - 1);
      atomicAdd(&bins[digit][0], 1);
      atomicAdd(&bins[digit][1], weight & 0xffff);
      atomicAdd(&bins[digit][2], weight >> 16);
    }
    if (weight > from_weight) {
      sum = wide_add(sum, vec2u(weight, 0));
    }
    if (weight == from_weight) {
      ties++;
    }
  }
  if (!is_digit) {
    sums[thread] = sum;
    tokens[thread] = ties;
    sum_groups(thread);
    if (thread == 0) {
      var all = vec2u(0);
      var count = 0u;
      for (var group = 0u; group < bound(GROUPS); group++) {
        all = wide_add(all, group_sums[group]);
        count += group_tokens[group];
      }
      let own = sums_at(sample, tile);
      atomicStore(&state[own], all.x);
      atomicStore(&state[own + 1], all.y);
      atomicStore(&state[own + 2], count);
    }
  }
  workgroupBarrier();
  if (has_bins) {
    add_bins(bins_at(sample) + 3 * own_bins_at(round), thread);
  }
}

fn find_best(one: ptr<function, SampleParams>, first: u32, thread: u32, own: u32) {
  if (thread == 0) {
    atomicStore(&has_nan, 0);
  }
  workgroupBarrier();
  var best_fixed_logit = FORBIDDEN;
  var best_order = 0;
  var best_id = NO_TOKEN;
  for (var i = 0u; i < bound(IDS_PER_THREAD); i++) {
    let id = first + i * WORKGROUP_SIZE;
    if (id >= params.vocab) {
      continue;
    }
    let bits = logits[(*one).logits + id];
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      atomicStore(&has_nan, 1);
    }
    let fixed_logit = fixed_logit_at(one, id);
    if (fixed_logit == FORBIDDEN || fixed_logit < best_fixed_logit) {
      continue;
    }
    let order = order_of(bits);
    if (fixed_logit > best_fixed_logit || order > best_order) {
      best_fixed_logit = fixed_logit;
      best_order = order;
      best_id = id;
    }
  }
  fixed_logits[thread] = best_fixed_logit;
  orders[thread] = best_order;
  ids[thread] = best_id;
  take_best(thread);
  if (thread == 0) {
    atomicStore(&state[own], bitcast<u32>(fixed_logits[0]));
    atomicStore(&state[own + 1], bitcast<u32>(orders[0]));
    atomicStore(&state[own + 2], ids[0]);
    atomicStore(&state[own + 3], atomicLoad(&has_nan));
  }
}

// Returns the offset of a round's bins within a sample's bins, in bins.
fn own_bins_at(round: u32) -> u32 {
  switch (round) {
    case K1: {
      return K1_AT;
    }
    case K2: {
      return K2_AT;
    }
    case P1: {
      return P1_AT;
    }
    case P2: {
      return P2_AT;
    }
    default: {
      return FIRST_BINS_AT;
    }
  }
}

// Adds the workgroup's bins to those of the sample.
fn add_bins(to: u32, thread: u32) {
  for (var i = thread; i < BINS; i += WORKGROUP_SIZE) {
    let count = atomicLoad(&bins[i][0]);
    if (count == 0) {
      continue;
    }
    let high = atomicLoad(&bins[i][2]);
    let sum = wide_add(vec2u(atomicLoad(&bins[i][1]), 0), vec2u(high << 16, high >> 16));
    atomicAdd(&state[to + 3 * i], count);
    let before = atomicAdd(&state[to + 3 * i + 1], sum.x);
    let carried = sum.y + select(0u, 1u, before + sum.x < before);
    if (carried > 0) {
      atomicAdd(&state[to + 3 * i + 2], carried);
    }
  }
}
