// The best of a workgroup's values, ties to the smaller id; appended to the kernels that say `uses: ['best_of']`.

const WORKGROUP_SIZE: u32 = 256;
const MAX_CANDIDATES: u32 = 128;

// Below every logit; a NaN counts as this.
const LOWEST = -3.4e38;
const NO_ID = 0xffffffffu;

struct Best {
  value: f32,
  id: u32,
}

var<workgroup> best_values: array<f32, WORKGROUP_SIZE>;
var<workgroup> best_ids: array<u32, WORKGROUP_SIZE>;

// Returns the best (value, id) of those that the threads pass; all threads of the workgroup must call it.
fn best_of(thread: u32, value: f32, id: u32) -> Best {
  best_values[thread] = value;
  best_ids[thread] = id;
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
  let best = Best(best_values[0], best_ids[0]);
  workgroupBarrier();
  return best;
}
