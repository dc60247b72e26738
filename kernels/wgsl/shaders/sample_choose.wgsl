// sample_choose: chooses the token of each sample, after the rounds of sample_tiles over its row; buffers as in sampling.wgsl
//
// One workgroup per sample. Greedy: the best of all tiles. Else: the tile in which the running sum exceeds the target, found from the
// sums of the tiles; then the thread within the tile, then the id. A thread has neighbouring ids, since the running sum is by ascending
// id.

var<workgroup> target_left: vec2u;
var<workgroup> ties_left: u32;
var<workgroup> chosen: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sample_choose(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let sample = workgroup.x;
  var one = params_of(sample);
  if (one.is_sampled == 0) {
    return;
  }
  let result = step[step[6] + 8 * sample + 4];
  let has_head = one.top_k > 0 || one.top_p > 0;
  let has_candidates = step[step[6] + 8 * sample + 1] > 0;
  take_best_of_tiles(sample, thread);
  if (thread == 0) {
    chosen = select(ids[0], NO_TOKEN, atomicLoad(&has_nan) == 1);
  }
  let best = workgroupUniformLoad(&chosen);
  if (best == NO_TOKEN || one.mantissa == 0) {
    if (thread == 0) {
      finish(&one, best, result, has_candidates);
    }
    return;
  }
  let highest = fixed_logits[0];
  var from_weight = 0u;
  var ties = 0u;
  if (has_head) {
    // The last round, TILES, has stored the final head.
    let head = load_head(head_at(sample, 4));
    from_weight = head.from_weight;
    ties = head.ties;
  }

  var own_sum = vec2u(0);
  var own_ties = 0u;
  if (thread < params.tiles) {
    let its = sums_at(sample, thread);
    own_sum = vec2u(atomicLoad(&state[its]), atomicLoad(&state[its + 1]));
    own_ties = atomicLoad(&state[its + 2]);
  }
  sums[thread] = own_sum;
  tokens[thread] = own_ties;
  sum_groups(thread);
  if (thread == 0) {
    var sum = wide_mul(from_weight, ties);
    for (var group = 0u; group < bound(GROUPS); group++) {
      sum = wide_add(sum, group_sums[group]);
    }
    target_left = wide_mul_high(vec2u(one.random_low, one.random_high), sum);
    ties_left = ties;
    chosen = find_slot(from_weight, params.tiles - 1);
  }
  let tile = workgroupUniformLoad(&chosen);

  var weights: array<u32, IDS_PER_THREAD>;
  var sum = vec2u(0);
  var equal = 0u;
  let first = tile * TILE + thread * IDS_PER_THREAD;
  for (var i = 0u; i < bound(IDS_PER_THREAD); i++) {
    weights[i] = 0;
    if (first + i < params.vocab) {
      weights[i] = weight_at(&one, first + i, highest);
    }
    if (weights[i] > from_weight) {
      sum = wide_add(sum, vec2u(weights[i], 0));
    } else if (weights[i] == from_weight) {
      equal++;
    }
  }
  sums[thread] = sum;
  tokens[thread] = select(equal, 0, from_weight == 0);
  sum_groups(thread);
  if (thread == 0) {
    chosen = find_slot(from_weight, WORKGROUP_SIZE - 1);
  }
  if (thread != workgroupUniformLoad(&chosen)) {
    return;
  }
  var rest = target_left;
  var left = ties_left;
  var token = NO_TOKEN;
  for (var i = 0u; i < bound(IDS_PER_THREAD); i++) {
    if (weights[i] == 0 || weights[i] < from_weight) {
      continue;
    }
    if (weights[i] == from_weight) {
      if (left == 0) {
        continue;
      }
      left--;
    }
    if (wide_less(rest, vec2u(weights[i], 0))) {
      token = first + i;
      break;
    }
    rest = wide_sub(rest, vec2u(weights[i], 0));
  }
  finish(&one, token, result, has_candidates);
}

// Returns the index in `sums` and `tokens` at which the running sum exceeds the target; at most `last`. Tokens whose weight equals
// from_weight count while ties are left.
fn find_slot(from_weight: u32, last: u32) -> u32 {
  var group = 0u;
  while (group < last / GROUP && is_before(from_weight, group_sums[group], group_tokens[group])) {
    group++;
  }
  var place = group * GROUP;
  while (place < min(last, group * GROUP + GROUP - 1) && is_before(from_weight, sums[place], tokens[place])) {
    place++;
  }
  return place;
}

// Whether the chosen token lies after these; if so, takes their weights off the target and their ties off ties_left.
fn is_before(from_weight: u32, sum: vec2u, count: u32) -> bool {
  let its_ties = min(count, ties_left);
  let its = wide_add(sum, wide_mul(from_weight, its_ties));
  if (wide_less(target_left, its)) {
    return false;
  }
  target_left = wide_sub(target_left, its);
  ties_left -= its_ties;
  return true;
}

fn finish(one: ptr<function, SampleParams>, token: u32, result: u32, has_candidates: bool) {
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
