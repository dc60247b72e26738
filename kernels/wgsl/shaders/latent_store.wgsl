// latent_store: stores the row of latent attention, the latent after its norm and the rotated key, rounded, at the row's slot; rotates the last
// ROTARY values of each head of q[r, :] into the last ones of each head of out[r, :]
//
//   latent  [rows][latent_stride] f32: RANK values, then ROTARY
//   q       [rows][q_stride] f32: heads of q_head values
//   out     [rows][out_stride] f32: heads of RANK + ROTARY values
//   weight  [RANK] f32; angles [positions][ROTARY / 2][2] f32: cosine, sine
//   step    header, rows [rows][3] u32: token, position, slot; slot = block * BLOCK_SIZE + offset
//   kv      one layer, as in rope_store.wgsl: a block has block_values, its plane lies from plane_at on, token_values a token
//
// Two workgroups per row: the first stores, the second rotates q. INTERLEAVED 1: neighbours are a pair, else halves; rotated values lie in
// halves. A thread takes two neighbouring values, so that it can pack them: RANK and ROTARY are multiples of 4.

const WORKGROUP_SIZE: u32 = 128;
const BLOCK_SIZE: u32 = 32;
const RANK: u32 = 512;
const ROTARY: u32 = 64;
const KV_F16: u32 = 1;
const INTERLEAVED: u32 = 1;

struct Params {
  heads: u32,
  q_head: u32,
  latent_stride: u32,
  q_stride: u32,
  out_stride: u32,
  block_values: u32,
  plane_at: u32,
  token_values: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> latent: array<vec4f>;
@group(0) @binding(2) var<storage, read> q: array<vec4f>;
@group(0) @binding(3) var<storage, read> weight: array<vec4f>;
@group(0) @binding(4) var<storage, read> angles: array<vec2f>;
@group(0) @binding(5) var<storage, read> step: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec2f>;
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;

const HALF = ROTARY / 2;
// Pairs of rotated values of each half.
const PAIRS = HALF / 2;

@compute @workgroup_size(WORKGROUP_SIZE)
fn latent_store(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let record = step[2] + 3 * row;
  let angle_at = step[record + 1] * HALF;
  if (workgroup.y == 1) {
    for (var i = thread; i < params.heads * PAIRS; i += WORKGROUP_SIZE) {
      let head = i / PAIRS;
      let pair = i % PAIRS;
      let at = (row * params.q_stride + (head + 1) * params.q_head - ROTARY) / 4;
      let rotated = rotate(q[at + first_quad(pair)], q[at + second_quad(pair)], pair, angle_at);
      let to = (row * params.out_stride + head * (RANK + ROTARY) + RANK) / 2;
      out[to + pair] = rotated.xy;
      out[to + PAIRS + pair] = rotated.zw;
    }
    return;
  }
  let base = row * params.latent_stride / 4;
  let slot = step[record + 2];
  let to = slot / BLOCK_SIZE * params.block_values + params.plane_at + slot % BLOCK_SIZE * params.token_values;
  var sum = 0.0;
  for (var i = thread; i < RANK / 4; i += WORKGROUP_SIZE) {
    let v = latent[base + i];
    sum = fma(v.x, v.x, sum);
    sum = fma(v.y, v.y, sum);
    sum = fma(v.z, v.z, sum);
    sum = fma(v.w, v.w, sum);
  }
  let scale = mean_scale(sum, 1.0 / f32(RANK), params.epsilon, thread);
  for (var i = thread; i < RANK / 4; i += WORKGROUP_SIZE) {
    let normed = weight[i] * (latent[base + i] * scale);
    store(to + 4 * i, normed.xy);
    store(to + 4 * i + 2, normed.zw);
  }
  for (var pair = thread; pair < PAIRS; pair += WORKGROUP_SIZE) {
    let at = base + RANK / 4;
    let rotated = rotate(latent[at + first_quad(pair)], latent[at + second_quad(pair)], pair, angle_at);
    store(to + RANK + 2 * pair, rotated.xy);
    store(to + RANK + HALF + 2 * pair, rotated.zw);
  }
}

// The quads of a head's rotary part that hold the inputs of a pair of rotated values.
fn first_quad(pair: u32) -> u32 {
  return select(pair / 2, pair, INTERLEAVED == 1);
}

fn second_quad(pair: u32) -> u32 {
  // Halves are multiples of 2 values, so that the second half may begin within a quad.
  return select((HALF + 2 * pair) / 4, pair, INTERLEAVED == 1);
}

// Returns values [2 * pair, 2 * pair + 2) of the first half after rotation, then those of the second half.
fn rotate(first: vec4f, second: vec4f, pair: u32, angle_at: u32) -> vec4f {
  var low = first.xz;
  var high = first.yw;
  if (INTERLEAVED == 0) {
    low = select(first.xy, first.zw, pair % 2 == 1);
    high = select(second.xy, second.zw, (HALF + 2 * pair) % 4 == 2);
  }
  let a = angles[angle_at + 2 * pair];
  let b = angles[angle_at + 2 * pair + 1];
  let cosines = vec2f(a.x, b.x);
  let sines = vec2f(a.y, b.y);
  return vec4f(low * cosines - high * sines, high * cosines + low * sines);
}

fn store(at: u32, values: vec2f) {
  if (KV_F16 == 1) {
    kv[at / 2] = pack2x16float(clamp(values, vec2f(-65504.0), vec2f(65504.0)));
  } else {
    kv[at] = bitcast<u32>(values.x);
    kv[at + 1] = bitcast<u32>(values.y);
  }
}
