// paged_attention: out[r, h, :] = sum over t <= position[r] of softmax(q[r, h, :] . k[t, :] * scale) * v[t, :]
//
//   qkv     [rows, qkv_width]            f32, query head h of a row starts at h * head_dim
//   kv      blocks of [layer][plane k, v][token][kv_head][head_dim], f16 in halves of a u32, or f32 (KV_F16 = 0)
//   table   [tables][table_width]        u32, block ids of a sequence
//   rows    [rows][2]                    u32, position and table of each row
//   out     [rows, heads * head_dim]     f32
//
// One workgroup per (head, row). Online softmax, blocks ascending, rescaled once per block, tokens ascending inside it, so a
// row's value depends on its position only. Needs head_dim to be even (two f16 in a u32).

override WORKGROUP_SIZE: u32 = 64;
override BLOCK_SIZE: u32 = 32;
override HEAD_DIM: u32 = 64;
override KV_F16: u32 = 1;

struct Params {
  heads: u32,
  kv_heads: u32,
  qkv_width: u32,
  table_width: u32,
  block_words: u32,
  plane_words: u32,
  layer: u32,
  scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> kv: array<u32>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

var<workgroup> scores: array<f32, BLOCK_SIZE>;
var<workgroup> accumulated: array<f32, HEAD_DIM>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn paged_attention(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let head = workgroup.x;
  let row = workgroup.y;
  let kv_head = head / (params.heads / params.kv_heads);
  let position = rows[2 * row];
  let sequence = rows[2 * row + 1];
  let q = row * params.qkv_width + head * HEAD_DIM;

  for (var d = thread; d < HEAD_DIM; d += WORKGROUP_SIZE) {
    accumulated[d] = 0.0;
  }
  // Every thread keeps the same two numbers; they come from workgroup memory in one order.
  var highest = -1e30;
  var sum = 0.0;

  let num_blocks = position / BLOCK_SIZE + 1;
  for (var block = 0u; block < num_blocks; block++) {
    let base = table[sequence * params.table_width + block] * params.block_words + params.layer * 2 * params.plane_words;
    let visible = min(BLOCK_SIZE, position - block * BLOCK_SIZE + 1);

    for (var t = thread; t < visible; t += WORKGROUP_SIZE) {
      var dot = 0.0;
      for (var d = 0u; d < HEAD_DIM; d++) {
        dot += qkv[q + d] * element(base, (t * params.kv_heads + kv_head) * HEAD_DIM + d);
      }
      scores[t] = dot * params.scale;
    }
    workgroupBarrier();

    var highest_now = highest;
    for (var t = 0u; t < visible; t++) {
      highest_now = max(highest_now, scores[t]);
    }
    let rescale = exp(highest - highest_now);
    sum *= rescale;
    for (var t = 0u; t < visible; t++) {
      sum += exp(scores[t] - highest_now);
    }
    for (var d = thread; d < HEAD_DIM; d += WORKGROUP_SIZE) {
      var value = accumulated[d] * rescale;
      for (var t = 0u; t < visible; t++) {
        let weight = exp(scores[t] - highest_now);
        value += weight * element(base + params.plane_words, (t * params.kv_heads + kv_head) * HEAD_DIM + d);
      }
      accumulated[d] = value;
    }
    highest = highest_now;
    // The next block overwrites the scores.
    workgroupBarrier();
  }

  for (var d = thread; d < HEAD_DIM; d += WORKGROUP_SIZE) {
    out[(row * params.heads + head) * HEAD_DIM + d] = accumulated[d] / sum;
  }
}

// Element `i` of the plane that starts at word `base`.
fn element(base: u32, i: u32) -> f32 {
  if (KV_F16 == 1) {
    return unpack2x16float(kv[base + i / 2])[i % 2];
  }
  return bitcast<f32>(kv[base + i]);
}
