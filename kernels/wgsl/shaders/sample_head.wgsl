// sample_head: finds where the head of a sample ends (the tokens that top_k or top_p keeps), as far as the rounds so far allow;
// sample_tiles.wgsl lists what each round adds. A head ends at a weight: first its highest 11 bits are known, then the next 11, then all.

const BEST = 0u;
const WEIGH = 1u;
const K1 = 2u;
const K2 = 3u;
const P1 = 4u;
const P2 = 5u;
const TILES = 6u;
const NONE = 0xffffffffu;

// Bins of a round, of digits of 11 bits; the last digits of a weight have 10.
const BINS = 2048u;
const LAST_BINS = 1024u;
// Offsets, in bins, of the bins of WEIGH, K1, K2, P1 and P2 within a sample's state.
const FIRST_BINS_AT = 0u;
const K1_AT = 2048u;
const K2_AT = 4096u;
const P1_AT = 5120u;
const P2_AT = 7168u;
const ALL_BINS = 8192u;

var<workgroup> head: Head;
// 0 where top_k keeps every token.
var<workgroup> is_active: u32;

fn bins_at(sample: u32) -> u32 {
  return head_at(sample, 5);
}

// Stores in `head` how far the head is known when a round begins; `is_active` is 0 where top_k keeps every token. Both parts are
// phases of one loop, so that the compiler sees its body once: phase 0 finds where top_k's head ends, for rounds that need that;
// phase 1 evaluates the bins of the round before.
fn find_head(sample: u32, round: u32, top_k: u32, top_p: u32, thread: u32) {
  let ends_top_k = top_k > 0 && (round == P1 || (round == TILES && top_p == 0));
  for (var phase = select(1u, 0u, ends_top_k); phase < bound(2); phase++) {
    // The bins to look into, their digit, and which head of the rounds before is resumed; none for those that begin.
    var at = FIRST_BINS_AT;
    var num = BINS;
    var shift = 21u;
    var resumed = NONE;
    if (phase == 0) {
      at = K2_AT;
      num = LAST_BINS;
      shift = 0;
      resumed = 1;
    } else if (round == K2) {
      at = K1_AT;
      shift = 10;
      resumed = 0;
    } else if (round == P2) {
      at = P1_AT;
      shift = 10;
      resumed = 2;
    } else if (round == TILES) {
      if (top_p == 0) {
        break;
      }
      at = P2_AT;
      num = LAST_BINS;
      shift = 0;
      resumed = 3;
    } else if (round == WEIGH) {
      break;
    }
    load_bins(bins_at(sample) + 3 * at, num / WORKGROUP_SIZE, num, thread);
    if (thread == 0) {
      if (resumed != NONE) {
        head = load_head(head_at(sample, resumed));
        is_active = atomicLoad(&state[head_at(sample, resumed) + 6]);
      }
      if (phase == 1 && round == K1) {
        begin_top_k(top_k);
      }
      if (phase == 1 && round == P1) {
        begin_top_p(top_p);
      }
      if (is_active == 1) {
        take_digit(bins_at(sample) + 3 * at, num, shift, phase == 1 && round >= P1);
      } else if (phase == 0) {
        // top_k keeps all: a head of nothing, and the round goes on.
        head = Head(0, 0, vec2u(0), vec2u(0));
        is_active = 1;
      }
    }
    workgroupBarrier();
  }
}

// Begins the search for the end of top_k; needs the sums of the first bins. Sets is_active to 0 when there are at most top_k tokens.
fn begin_top_k(top_k: u32) {
  var count = 0u;
  for (var group = 0u; group < bound(GROUPS); group++) {
    count += group_tokens[group];
  }
  head.rest = vec2u(top_k, 0);
  is_active = select(1u, 0u, top_k >= count);
}

// Begins the search for the end of top_p with the sum that it must reach: its share of the weights that top_k keeps, or of the sums of
// the first bins, rounded up.
fn begin_top_p(top_p: u32) {
  var kept = wide_add(head.above, wide_mul(head.from_weight, head.ties));
  if (head.from_weight == 0) {
    kept = vec2u(0);
    for (var group = 0u; group < bound(GROUPS); group++) {
      kept = wide_add(kept, group_sums[group]);
    }
  }
  let limit = wide_add(wide_mul(kept.x, top_p), vec2u(0xffffffffu, 0)).y;
  head = Head(0, 0, wide_add(wide_mul(kept.y, top_p), vec2u(limit, 0)), vec2u(0));
}

fn keep_head(at: u32) {
  atomicStore(&state[at], head.from_weight);
  atomicStore(&state[at + 1], head.ties);
  atomicStore(&state[at + 2], head.rest.x);
  atomicStore(&state[at + 3], head.rest.y);
  atomicStore(&state[at + 4], head.above.x);
  atomicStore(&state[at + 5], head.above.y);
  atomicStore(&state[at + 6], is_active);
}

// Loads the tokens and sums of each thread's `each` bins, from the highest digit down, and adds them up by groups of threads.
fn load_bins(bins_from: u32, each: u32, num: u32, thread: u32) {
  var sum = vec2u(0);
  var count = 0u;
  for (var i = 0u; i < bound(each); i++) {
    let bin = bins_from + 3 * (num - 1 - (thread * each + i));
    count += atomicLoad(&state[bin]);
    sum = wide_add(sum, vec2u(atomicLoad(&state[bin + 1]), atomicLoad(&state[bin + 2])));
  }
  sums[thread] = sum;
  tokens[thread] = count;
  sum_groups(thread);
}

// Finds the digit at which `head` ends, from the highest down: where head.rest, a number of tokens or a sum of weights, is reached.
fn take_digit(bins_from: u32, num: u32, shift: u32, is_sum: bool) {
  let each = num / WORKGROUP_SIZE;
  var group = 0u;
  while (group < GROUPS - 1 && is_passed(group_sums[group], group_tokens[group], is_sum)) {
    group++;
  }
  var owner = group * GROUP;
  while (owner < group * GROUP + GROUP - 1 && is_passed(sums[owner], tokens[owner], is_sum)) {
    owner++;
  }
  var digit = num - 1 - owner * each;
  let last = digit - (each - 1);
  while (digit > last) {
    let bin = bins_from + 3 * digit;
    let its = vec2u(atomicLoad(&state[bin + 1]), atomicLoad(&state[bin + 2]));
    if (!is_passed(its, atomicLoad(&state[bin]), is_sum)) {
      break;
    }
    digit--;
  }
  head.from_weight |= digit << shift;
  if (shift == 0) {
    head.ties = head.rest.x;
    if (is_sum) {
      head.ties = wide_ceil_div(head.rest, head.from_weight);
    }
  }
}

// Whether the head goes on below these tokens; if so, takes them off head.rest and adds them to head.above.
fn is_passed(sum: vec2u, count: u32, is_sum: bool) -> bool {
  let its = select(vec2u(count, 0), sum, is_sum);
  if (!wide_less(its, head.rest)) {
    return false;
  }
  head.rest = wide_sub(head.rest, its);
  head.above = wide_add(head.above, sum);
  return true;
}
