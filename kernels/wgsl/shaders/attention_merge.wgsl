// attention_merge: the partials of a row's splits, merged in order, divided: out[r, h, :]
//
//   parts, part_stats  as paged_attention wrote them
//   step               header; merges [merges][4] u32: row, first partial, partials, unused
//   sinks              [heads] f32, read where HAS_SINKS is 1: scores without values, merged first
//   out                [rows][out_stride] f32
//
// One workgroup per head and merge; the arithmetic is that of paged_attention's merge, so both give the same bits (E2).

const WORKGROUP_SIZE: u32 = 64;
const HEAD_DIM: u32 = 64;
const HAS_SINKS: u32 = 0;

struct Params {
  heads: u32,
  out_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec4f>;
@group(0) @binding(2) var<storage, read> part_stats: array<vec2f>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;

const LOWEST = -1e30;
const QUADS = HEAD_DIM / 4;
// Loads in flight before the first is needed.
const BATCH = 8u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_merge(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let head = workgroup.x;
  let merge = step[5] + 4 * workgroup.y;
  let row = step[merge];
  let first = step[merge + 1];
  let count = step[merge + 2];
  for (var quad = thread; quad < QUADS; quad += WORKGROUP_SIZE) {
    var highest = LOWEST;
    var sum = 0.0;
    if (HAS_SINKS == 1) {
      highest = sinks[head];
      sum = 1.0;
    }
    var value = vec4f(0.0);
    for (var start = 0u; start < count; start += BATCH) {
      var stats: array<vec2f, BATCH>;
      var values: array<vec4f, BATCH>;
      for (var i = 0u; i < BATCH; i++) {
        let slot = (first + min(start + i, count - 1)) * params.heads + head;
        // Past the last partial, an empty one, which changes no bit of the result.
        stats[i] = select(vec2f(LOWEST, 0.0), part_stats[slot], start + i < count);
        values[i] = parts[slot * QUADS + quad];
      }
      // Merge the whole batch, without a condition, so that the compiler keeps the loads together.
      for (var i = 0u; i < BATCH; i++) {
        let now = max(highest, stats[i].x);
        let rescale = exp(highest - now);
        let part_rescale = exp(stats[i].x - now);
        sum = fma(sum, rescale, stats[i].y * part_rescale);
        value = fma(value, vec4f(rescale), values[i] * part_rescale);
        highest = now;
      }
    }
    out[row * params.out_stride / 4 + head * QUADS + quad] = value * (1.0 / sum);
  }
}
