// number_expert_slots: numbers the expert slots of a step by expert, then by row, and forms the items that are multiplied together
//
//   step     the step's header; [0] is the number of rows
//   routing  [0] number of items; then as in routing.ts
//   routes   [rows][routes_stride] u32: after PER_TOKEN weights, the expert slots
//
// One workgroup, for steps of several rows: in a step of one row, route.wgsl numbers the expert slots. A pair is a row and one of
// its choices; each has one pick, the expert, and gets one expert slot. Picks are counted by expert; then, ROWS_AT_ONCE rows at a
// time, each expert has a bit for each row that goes to it, and the expert slot of a pair is the expert's next slot plus the number
// of bits before its own. No loop waits for memory at every pair: a thread loads BATCH picks at a time.

const WORKGROUP_SIZE: u32 = 256;
const EXPERTS: u32 = 8;
const PER_TOKEN: u32 = 2;

struct Params {
  routes_stride: u32,
  picks_at: u32,
  order_at: u32,
  items_at: u32,
  tiled_rows: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> routing: array<u32>;
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

const BATCH = 8u;
const NONE = 0xffffffffu;
// Words of the bits of one expert, so that those of all experts take at most 16 KiB, and the rows that they cover.
const WORDS = max(1u, min(16u, 4096u / EXPERTS));
const ROWS_AT_ONCE = 32 * WORDS;
// Experts of a thread when their counts are added up.
const EACH = (EXPERTS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
// Next free expert slot of each expert; at first the first of the expert's slots.
var<workgroup> expert_slots: array<u32, EXPERTS>;
var<workgroup> bits: array<atomic<u32>, EXPERTS * WORDS>;
var<workgroup> slot_sums: array<u32, WORKGROUP_SIZE>;
var<workgroup> item_sums: array<u32, WORKGROUP_SIZE>;

// Returns a thread's next BATCH picks from `start` on, a workgroup apart, of the `count` picks that begin at `first`; NONE past the
// last.
fn picks_from(first: u32, start: u32, count: u32, thread: u32) -> array<u32, BATCH> {
  var picks: array<u32, BATCH>;
  for (var i = 0u; i < BATCH; i++) {
    let at = start + i * WORKGROUP_SIZE + thread;
    picks[i] = select(NONE, routing[params.picks_at + first + min(at, count - 1)], at < count);
  }
  return picks;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn number_expert_slots(@builtin(local_invocation_index) thread: u32) {
  let rows = step[0];
  let pairs = rows * PER_TOKEN;
  var at_once = 64u;
  if (rows < params.tiled_rows) {
    at_once = 1u;
    while (at_once < min(rows, 8u)) {
      at_once *= 2u;
    }
  }
  for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
    atomicStore(&counts[expert], 0);
  }
  workgroupBarrier();
  for (var start = 0u; start < pairs; start += BATCH * WORKGROUP_SIZE) {
    let picks = picks_from(0, start, pairs, thread);
    for (var i = 0u; i < BATCH; i++) {
      if (picks[i] != NONE) {
        atomicAdd(&counts[picks[i]], 1);
      }
    }
  }
  workgroupBarrier();

  // Expert slots and items of this thread's experts; the loop below turns them into prefix sums over the threads.
  var own_slots = 0u;
  var own_items = 0u;
  for (var i = 0u; i < EACH; i++) {
    let expert = thread * EACH + i;
    if (expert < EXPERTS) {
      let count = atomicLoad(&counts[expert]);
      own_slots += count;
      own_items += (count + at_once - 1) / at_once;
    }
  }
  slot_sums[thread] = own_slots;
  item_sums[thread] = own_items;
  workgroupBarrier();
  for (var distance = 1u; distance < WORKGROUP_SIZE; distance *= 2) {
    var more = vec2u(0);
    if (thread >= distance) {
      more = vec2u(slot_sums[thread - distance], item_sums[thread - distance]);
    }
    workgroupBarrier();
    slot_sums[thread] += more.x;
    item_sums[thread] += more.y;
    workgroupBarrier();
  }
  var expert_slot = slot_sums[thread] - own_slots;
  var item = item_sums[thread] - own_items;
  for (var i = 0u; i < EACH; i++) {
    let expert = thread * EACH + i;
    if (expert >= EXPERTS) {
      break;
    }
    expert_slots[expert] = expert_slot;
    let end = expert_slot + atomicLoad(&counts[expert]);
    for (; expert_slot < end; item++) {
      let count = min(at_once, end - expert_slot);
      let to = params.items_at + 3 * item;
      routing[to] = expert;
      routing[to + 1] = expert_slot;
      routing[to + 2] = count;
      expert_slot += count;
    }
  }
  if (thread == 0) {
    routing[0] = item_sums[WORKGROUP_SIZE - 1];
  }

  for (var row = 0u; row < rows; row += ROWS_AT_ONCE) {
    let first = row * PER_TOKEN;
    let count = min(ROWS_AT_ONCE, rows - row) * PER_TOKEN;
    for (var i = thread; i < EXPERTS * WORDS; i += WORKGROUP_SIZE) {
      atomicStore(&bits[i], 0);
    }
    workgroupBarrier();
    for (var start = 0u; start < count; start += BATCH * WORKGROUP_SIZE) {
      let picks = picks_from(first, start, count, thread);
      for (var i = 0u; i < BATCH; i++) {
        let its_row = (start + i * WORKGROUP_SIZE + thread) / PER_TOKEN;
        if (picks[i] != NONE) {
          atomicOr(&bits[picks[i] * WORDS + its_row / 32], 1u << (its_row % 32));
        }
      }
    }
    workgroupBarrier();
    for (var start = 0u; start < count; start += BATCH * WORKGROUP_SIZE) {
      let picks = picks_from(first, start, count, thread);
      for (var i = 0u; i < BATCH; i++) {
        if (picks[i] == NONE) {
          continue;
        }
        let pair = start + i * WORKGROUP_SIZE + thread;
        let its_row = pair / PER_TOKEN;
        var its_slot = expert_slots[picks[i]];
        for (var word = 0u; word < its_row / 32; word++) {
          its_slot += countOneBits(atomicLoad(&bits[picks[i] * WORDS + word]));
        }
        let before = atomicLoad(&bits[picks[i] * WORDS + its_row / 32]) & ((1u << (its_row % 32)) - 1);
        its_slot += countOneBits(before);
        routing[params.order_at + its_slot] = row + its_row;
        routes[(row + its_row) * params.routes_stride + PER_TOKEN + pair % PER_TOKEN] = its_slot;
      }
    }
    workgroupBarrier();
    for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
      for (var word = 0u; word < WORDS; word++) {
        expert_slots[expert] += countOneBits(atomicLoad(&bits[expert * WORDS + word]));
      }
    }
    workgroupBarrier();
  }
}
