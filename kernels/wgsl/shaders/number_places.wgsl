// number_places: the places of all turns of a step, by expert, then by row, and the items that are multiplied together
//
//   step     the step's header; [0] is the number of rows
//   routing  [0] items; then as routing.ts has it
//   routes   [rows][routes_stride] u32: after PER_TOKEN weights, places
//
// One workgroup; a thread counts and numbers the turns of one expert, or of every WORKGROUP_SIZE-th.

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

var<workgroup> counts: array<u32, EXPERTS>;
var<workgroup> starts: array<u32, EXPERTS>;
var<workgroup> first_items: array<u32, EXPERTS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn number_places(@builtin(local_invocation_index) thread: u32) {
  let rows = step[0];
  let places = rows * PER_TOKEN;
  var at_once = 64u;
  if (rows < params.tiled_rows) {
    at_once = 1u;
    while (at_once < min(rows, 8u)) {
      at_once *= 2u;
    }
  }
  for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
    var count = 0u;
    for (var turn = 0u; turn < places; turn++) {
      count += select(0u, 1u, routing[params.picks_at + turn] == expert);
    }
    counts[expert] = count;
  }
  workgroupBarrier();
  if (thread == 0) {
    var place = 0u;
    var item = 0u;
    for (var expert = 0u; expert < EXPERTS; expert++) {
      starts[expert] = place;
      first_items[expert] = item;
      place += counts[expert];
      item += (counts[expert] + at_once - 1) / at_once;
    }
    routing[0] = item;
  }
  workgroupBarrier();
  for (var expert = thread; expert < EXPERTS; expert += WORKGROUP_SIZE) {
    var place = starts[expert];
    let end = place + counts[expert];
    for (var turn = 0u; turn < places && place < end; turn++) {
      if (routing[params.picks_at + turn] == expert) {
        routing[params.order_at + place] = turn / PER_TOKEN;
        routes[turn / PER_TOKEN * params.routes_stride + PER_TOKEN + turn % PER_TOKEN] = place;
        place++;
      }
    }
    var item = params.items_at + 3 * first_items[expert];
    for (var first = starts[expert]; first < end; first += at_once) {
      routing[item] = expert;
      routing[item + 1] = first;
      routing[item + 2] = min(at_once, end - first);
      item += 3;
    }
  }
}
