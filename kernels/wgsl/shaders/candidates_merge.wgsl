// candidates_merge: merges the lists of a sample's tiles into its results
//
//   lists, stats  as candidates wrote them
//   logits        [samples][stride] f32, for the tokens that were asked for
//   step          header; samples as in candidates.wgsl; asked tokens u32
//   results       u32 words, from the sample's third: ids [wanted], bits of logits [wanted], highest, sum, bits of asked logits, or,
//                 without candidates, bits of asked logits from the second word on
//
// One workgroup per sample. A tile's list is sorted, so a thread keeps the head of one tile's list, and each round takes the
// best head away: at most WORKGROUP_SIZE tiles.

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

@compute @workgroup_size(WORKGROUP_SIZE)
fn candidates_merge(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let sample = workgroup.x;
  let record = step[6] + 8 * sample;
  let wanted = min(step[record + 1], params.vocab);
  let asked_at = step[record + 2];
  let num_asked = step[record + 3];
  let result = step[record + 4] + 2;
  let asked = select(result + 2 * wanted + 2, result - 1, wanted == 0);
  let list = (sample * params.tiles + thread) * MAX_CANDIDATES;
  let tile_size = params.vocab - min(params.vocab, thread * 2048);

  for (var i = thread; i < num_asked; i += WORKGROUP_SIZE) {
    results[asked + i] = bitcast<u32>(logits[sample * params.stride + step[asked_at + i]]);
  }
  var head = 0u;
  for (var round = 0u; round < wanted; round++) {
    var own = Best(LOWEST, NO_ID);
    if (thread < params.tiles && head < min(wanted, tile_size)) {
      let entry = lists[list + head];
      own = Best(bitcast<f32>(entry.x), entry.y);
    }
    let best = best_of(thread, own.value, own.id);
    if (own.id == best.id) {
      head++;
    }
    if (thread == 0) {
      results[result + round] = best.id;
      results[result + wanted + round] = bitcast<u32>(best.value);
      if (round == 0) {
        var sum = 0.0;
        for (var tile = 0u; tile < params.tiles; tile++) {
          let part = stats[sample * params.tiles + tile];
          sum += part.y * exp(part.x - best.value);
        }
        results[result + 2 * wanted] = bitcast<u32>(best.value);
        results[result + 2 * wanted + 1] = bitcast<u32>(sum);
      }
    }
  }
}
