// candidates: finds in each tile of 2,048 logits the best (descending, ties by ascending id), the highest, the sum of e^(l - highest)
//
//   logits  [samples][stride] f32
//   step    header, samples [samples][8] u32: row, candidates, first asked, asked, first result word
//   lists   [samples][tiles][MAX_CANDIDATES][2] u32: bits of the logit, id
//   stats   [samples][tiles][2] f32
//
// One workgroup per tile and sample; a thread keeps eight logits, and each round takes the best of the workgroup away.

struct Params {
  vocab: u32,
  stride: u32,
  tiles: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read_write> lists: array<vec2u>;
@group(0) @binding(4) var<storage, read_write> stats: array<vec2f>;

const PER_THREAD = 8u;
var<workgroup> partial: array<f32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn candidates(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let tile = workgroup.x;
  let sample = workgroup.y;
  let first = tile * WORKGROUP_SIZE * PER_THREAD + thread;
  let list = (sample * params.tiles + tile) * MAX_CANDIDATES;
  let wanted = min(step[step[6] + 8 * sample + 1], min(MAX_CANDIDATES, params.vocab - tile * WORKGROUP_SIZE * PER_THREAD));

  var values: array<f32, PER_THREAD>;
  for (var i = 0u; i < PER_THREAD; i++) {
    let id = first + i * WORKGROUP_SIZE;
    values[i] = LOWEST;
    if (id < params.vocab) {
      values[i] = max(logits[sample * params.stride + id], LOWEST);
    }
  }

  var taken = 0u;
  for (var round = 0u; round < wanted; round++) {
    // Ids ascend with i, so the first of equals has the smaller one.
    var value = LOWEST;
    var id = NO_ID;
    for (var i = 0u; i < PER_THREAD; i++) {
      let is_free = (taken & (1u << i)) == 0 && first + i * WORKGROUP_SIZE < params.vocab;
      if (is_free && (id == NO_ID || values[i] > value)) {
        value = values[i];
        id = first + i * WORKGROUP_SIZE;
      }
    }
    let best = best_of(thread, value, id);
    if (thread == 0) {
      lists[list + round] = vec2u(bitcast<u32>(best.value), best.id);
    }
    if (round == 0) {
      var sum = 0.0;
      for (var i = 0u; i < PER_THREAD; i++) {
        if (first + i * WORKGROUP_SIZE < params.vocab) {
          sum += exp(values[i] - best.value);
        }
      }
      partial[thread] = sum;
      workgroupBarrier();
      if (thread == 0) {
        var total = 0.0;
        for (var i = 0u; i < WORKGROUP_SIZE; i++) {
          total += partial[i];
        }
        stats[sample * params.tiles + tile] = vec2f(best.value, total);
      }
    }
    for (var i = 0u; i < PER_THREAD; i++) {
      if (first + i * WORKGROUP_SIZE == best.id) {
        taken |= 1u << i;
      }
    }
  }
}
