// rope_store: with HEAD_NORM normalises each head of q and k, with VALUE_NORM of v too, as qk_norm does; rotates ROTARY values of the heads of q and k of qkv[r, :] in
// place (i pairs with i + PAIR_DISTANCE); with QUERY_FACTORS multiplies q by the position's factor; stores k and v, rounded, at the row's slot
//
//   qkv     [rows][stride] f32: heads of q, then kv_heads of k, then from head first_value on kv_heads of v; no k where keys are computed
//   angles  [positions][ROTARY / 2][2] f32: cosine, sine; with QUERY_FACTORS each position ends with [2] f32: factor, 0
//   norm    with HEAD_NORM [HEAD_DIM] f32 for q, then as many for k
//   step    header, rows [rows][3] u32: token, position, slot; slot = block * BLOCK_SIZE + offset
//   kv      one layer: [blocks][plane][BLOCK_SIZE][plane's values of a token], f16 in halves of a u32, or f32; a block has block_values, its
//           k lies from k_at on, k_width values a token, its v from v_at on, v_width a token. A layer of one plane has no v, here or in qkv
//
// One workgroup per row and head (q's, then k's, then v's; q's alone where nothing is stored); a thread takes two neighbouring values of each half, so that it can pack
// them: ROTARY is a multiple of 4, PAIR_DISTANCE even.

const WORKGROUP_SIZE: u32 = 64;
const BLOCK_SIZE: u32 = 32;
const HEAD_DIM: u32 = 64;
const ROTARY: u32 = 64;
const PAIR_DISTANCE: u32 = 32;
const QUERY_FACTORS: u32 = 0;
const KV_F16: u32 = 1;
const HEAD_NORM: u32 = 0;
const VALUE_NORM: u32 = 0;

struct Params {
  heads: u32,
  first_value: u32,
  stride: u32,
  epsilon: f32,
  block_values: u32,
  k_at: u32,
  k_width: u32,
  v_at: u32,
  v_width: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> angles: array<vec2f>;
@group(0) @binding(2) var<storage, read> step: array<u32>;
@group(0) @binding(3) var<storage, read> norm: array<vec2f>;
@group(0) @binding(4) var<storage, read_write> qkv: array<vec2f>;
@group(0) @binding(5) var<storage, read_write> kv: array<u32>;

const HALF = ROTARY / 2;
// Entries of a position in angles.
const ANGLES = HALF + QUERY_FACTORS;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rope_store(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let head = workgroup.y;
  let record = step[2] + 3 * row;
  let position = step[record + 1];
  let slot = step[record + 2];
  let base = (row * params.stride + head * HEAD_DIM) / 2;
  let is_value = head >= params.first_value;
  let kv_head = head - select(params.heads, params.first_value, is_value);
  let plane = slot / BLOCK_SIZE * params.block_values + select(params.k_at, params.v_at, is_value);
  let to = plane + slot % BLOCK_SIZE * select(params.k_width, params.v_width, is_value) + kv_head * HEAD_DIM;

  if (HEAD_NORM == 1 && (VALUE_NORM == 1 || !is_value)) {
    let scale = head_scale(base, thread);
    let weights = select(0u, HEAD_DIM / 2, head >= params.heads);
    for (var i = thread; i < HEAD_DIM / 2; i += WORKGROUP_SIZE) {
      let normed = qkv[base + i] * scale;
      if (VALUE_NORM == 1 && is_value) {
        qkv[base + i] = normed;
      } else {
        qkv[base + i] = norm[weights + i] * normed;
      }
    }
    storageBarrier();
  }
  var factor = 1.0;
  if (QUERY_FACTORS == 1 && head < params.heads) {
    factor = angles[position * ANGLES + HALF].x;
  }
  for (var i = 2 * thread; i < HALF; i += 2 * WORKGROUP_SIZE) {
    var low = qkv[base + i / 2];
    var high = qkv[base + (PAIR_DISTANCE + i) / 2];
    if (!is_value) {
      let first = angles[position * ANGLES + i];
      let second = angles[position * ANGLES + i + 1];
      let cosines = vec2f(first.x, second.x);
      let sines = vec2f(first.y, second.y);
      let rotated = low * cosines - high * sines;
      high = high * cosines + low * sines;
      low = rotated;
      if (QUERY_FACTORS == 1) {
        low *= factor;
        high *= factor;
      }
      qkv[base + i / 2] = low;
      qkv[base + (PAIR_DISTANCE + i) / 2] = high;
    }
    if (head >= params.heads) {
      store(to + i, low);
      store(to + PAIR_DISTANCE + i, high);
    }
  }
  // Values that are not rotated lie between the halves and after them.
  for (var j = 2 * thread; j < HEAD_DIM - ROTARY; j += 2 * WORKGROUP_SIZE) {
    let i = j + select(ROTARY, HALF, j < PAIR_DISTANCE - HALF);
    if (head >= params.heads) {
      store(to + i, qkv[base + i / 2]);
    } else if (QUERY_FACTORS == 1) {
      qkv[base + i / 2] *= factor;
    }
  }
}

// Returns the scale of a head, summed in the order in which qk_norm sums when it splits a head among as many threads.
fn head_scale(base: u32, thread: u32) -> f32 {
  var sum = 0.0;
  for (var i = thread; i < HEAD_DIM / 4; i += WORKGROUP_SIZE) {
    let low = qkv[base + 2 * i];
    let high = qkv[base + 2 * i + 1];
    sum = fma(low.x, low.x, sum);
    sum = fma(low.y, low.y, sum);
    sum = fma(high.x, high.x, sum);
    sum = fma(high.y, high.y, sum);
  }
  return mean_scale(sum, 1.0 / f32(HEAD_DIM), params.epsilon, thread);
}

fn store(at: u32, values: vec2f) {
  if (KV_F16 == 1) {
    kv[at / 2] = pack2x16float(clamp(values, vec2f(-65504.0), vec2f(65504.0)));
  } else {
    kv[at] = bitcast<u32>(values.x);
    kv[at + 1] = bitcast<u32>(values.y);
  }
}
