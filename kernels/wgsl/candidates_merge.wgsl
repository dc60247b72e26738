// candidates_merge: the tiles' lists of a sample into its results
//
//   lists, stats  as candidates wrote them
//   logits        [samples][stride] f32, for the tokens that were asked for
//   step          header; samples as in candidates.wgsl; asked tokens u32
//   results       u32 words, from the sample's first: ids [wanted], bits of logits [wanted], highest, sum, bits of asked logits
//
// One workgroup per sample. A tile's list is sorted, so a thread keeps the head of one tile's list, and each round takes the
// best head away: at most WORKGROUP_SIZE tiles.

const WORKGROUP_SIZE: u32 = 256;
const MAX_CANDIDATES: u32 = 128;

struct Params {
  vocab: u32,
  stride: u32,
  tiles: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lists: array<vec2u>;
@group(0) @binding(2) var<storage, read> stats: array<vec2f>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> step: array<u32>;
@group(0) @binding(5) var<storage, read_write> results: array<u32>;

const LOWEST = -3.4e38;
const NO_ID = 0xffffffffu;

var<workgroup> best_values: array<f32, WORKGROUP_SIZE>;
var<workgroup> best_ids: array<u32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn candidates_merge(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let sample = workgroup.x;
  let record = step[6] + 8 * sample;
  let wanted = min(step[record + 1], params.vocab);
  let asked_at = step[record + 2];
  let num_asked = step[record + 3];
  let result = step[record + 4];
  let list = (sample * params.tiles + thread) * MAX_CANDIDATES;
  let tile_size = params.vocab - min(params.vocab, thread * 2048);

  for (var i = thread; i < num_asked; i += WORKGROUP_SIZE) {
    results[result + 2 * wanted + 2 + i] = bitcast<u32>(logits[sample * params.stride + step[asked_at + i]]);
  }
  var head = 0u;
  for (var round = 0u; round < wanted; round++) {
    best_values[thread] = LOWEST;
    best_ids[thread] = NO_ID;
    if (thread < params.tiles && head < min(wanted, tile_size)) {
      let entry = lists[list + head];
      best_values[thread] = bitcast<f32>(entry.x);
      best_ids[thread] = entry.y;
    }
    let own = best_ids[thread];
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
      if (thread < half) {
        let other = best_values[thread + half];
        let other_id = best_ids[thread + half];
        let mine = best_values[thread];
        if (other > mine || (other == mine && other_id < best_ids[thread])) {
          best_values[thread] = other;
          best_ids[thread] = other_id;
        }
      }
      workgroupBarrier();
    }
    let winner = best_ids[0];
    let value = best_values[0];
    workgroupBarrier();
    if (own == winner) {
      head++;
    }
    if (thread == 0) {
      results[result + round] = winner;
      results[result + wanted + round] = bitcast<u32>(value);
      if (round == 0) {
        var sum = 0.0;
        for (var tile = 0u; tile < params.tiles; tile++) {
          let part = stats[sample * params.tiles + tile];
          sum += part.y * exp(part.x - value);
        }
        results[result + 2 * wanted] = bitcast<u32>(value);
        results[result + 2 * wanted + 1] = bitcast<u32>(sum);
      }
    }
  }
}
