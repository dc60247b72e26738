// rope_store: rotates q and k of qkv[r, :] in place (i pairs with i + head_dim / 2), stores k and v, rounded, at the row's slot
//
//   qkv     [rows][stride] f32: heads of q, then kv_heads of k, then kv_heads of v
//   angles  [positions][head_dim / 2][2] f32: cosine, sine
//   step    header, rows [rows][4] u32: token, position, slot, sequence; slot = block * BLOCK_SIZE + offset
//   kv      one layer: [blocks][plane k, v][BLOCK_SIZE][kv_heads][head_dim], f16 in halves of a u32, or f32
//
// One workgroup per row: it writes the rotated values back, then packs them.

const WORKGROUP_SIZE: u32 = 128;
const BLOCK_SIZE: u32 = 32;
const KV_F16: u32 = 1;

struct Params {
  heads: u32,
  kv_heads: u32,
  head_dim: u32,
  stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> angles: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rope_store(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let record = step[2] + 4 * row;
  let position = step[record + 1];
  let slot = step[record + 2];
  let half = params.head_dim / 2;
  let base = row * params.stride;

  for (var i = thread; i < (params.heads + params.kv_heads) * half; i += WORKGROUP_SIZE) {
    let pair = i % half;
    let low_at = base + i / half * params.head_dim + pair;
    let angle = 2 * (position * half + pair);
    let cosine = angles[angle];
    let sine = angles[angle + 1];
    let low = qkv[low_at];
    let high = qkv[low_at + half];
    qkv[low_at] = low * cosine - high * sine;
    qkv[low_at + half] = high * cosine + low * sine;
  }
  storageBarrier();

  let width = params.kv_heads * params.head_dim;
  let k_at = base + params.heads * params.head_dim;
  // Both planes of a token, BLOCK_SIZE tokens apart.
  let to = slot / BLOCK_SIZE * (2 * BLOCK_SIZE * width) + slot % BLOCK_SIZE * width;
  for (var i = 2 * thread; i < 2 * width; i += 2 * WORKGROUP_SIZE) {
    let plane = i / width;
    let at = to + plane * BLOCK_SIZE * width + i % width;
    let values = vec2f(qkv[k_at + i], qkv[k_at + i + 1]);
    if (KV_F16 == 1) {
      kv[at / 2] = pack2x16float(clamp(values, vec2f(-65504.0), vec2f(65504.0)));
    } else {
      kv[at] = bitcast<u32>(values.x);
      kv[at + 1] = bitcast<u32>(values.y);
    }
  }
}
