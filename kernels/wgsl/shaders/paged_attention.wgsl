// paged_attention: out[r, h, :] = sum over visible t of softmax(q[r, h, :] . k[t, :] * scale) * v[t, :]
//
//   with HAS_CAP a scaled score s is cap * tanh(s / cap)
//   with HAS_SINKS the sum of exponentials also has that of the head's sink, a score without a value
//   visible: t <= position(r), and t > position(r) - window where the layer has a window
//   qkv      [rows][qkv_stride] f32, query head h of a row starts at h * HEAD_DIM
//   kv       one layer, as in rope_store.wgsl, VECTOR_WORDS words at a time; params count words: of a block, and of k's and v's plane where
//            it begins in a block, and of a token in it
//   step     header; items [items][8] u32: first row, rows, first position, block table (index into step), first split,
//            splits, first partial (or NONE), partials from one row to the next
//   angles   with COMPUTED_KEYS [positions][ROTARY / 2][2] f32: cosine, sine
//   vector   with COMPUTED_KEYS [HEAD_DIM] f32, the weight of the norm of keys; with HAS_SINKS [heads] f32, the sinks
//   out      [rows][out_stride] f32
//   parts    [partials][heads][HEAD_DIM] f32, sums of v not yet divided; part_stats [partials][heads][2]: highest, sum
//
// Flash attention. One workgroup per item and KV head; an item is up to TILE_ROWS consecutive rows of one sequence, and its
// queries are those rows times all GROUP query heads of the KV head, so K and V are read once for the group. Tiles of TOKENS
// tokens, at absolute positions, with an online softmax; every SPLIT tokens a split ends, and splits are merged in order. An
// item covers all splits of its rows and writes `out`, or one split of them and writes a partial per row, which attention_merge
// merges by the same arithmetic: so a row's bits depend on its position only (E2).
//
// With COMPUTED_KEYS the layer stores V alone: K is vector * V, rotated as in rope_store, rounded like stored K; vectors of K then have
// no pair within them, and no value that is rotated next to one that is not.
//
// UNROLLED 0 is for the software driver, whose compiler would spend seconds on unrolling.
//
// Per tile: K and V are loaded together, so that V arrives while scores are computed; K into workgroup memory; scores, one thread
// per QUERY_BLOCK queries and token; highest, weights, sums; V into workgroup memory; then each thread adds up V for its vectors of
// the output. HEAD_DIM is a multiple of 4.
alias KvVector = vec4u;

const WORKGROUP_SIZE: u32 = 128;
const BLOCK_SIZE: u32 = 32;
const HEAD_DIM: u32 = 64;
const GROUP: u32 = 1;
const TILE_ROWS: u32 = 1;
const QUERY_BLOCK: u32 = 1;
const TOKENS: u32 = 32;
const SPLIT: u32 = 256;
const KV_F16: u32 = 1;
const HAS_WINDOW: u32 = 0;
const HAS_CAP: u32 = 0;
const HAS_SINKS: u32 = 0;
// 1: a token has as many words of V as of K, so that every V lies v_at - k_at words after its K.
const SAME_STRIDE: u32 = 1;
const COMPUTED_KEYS: u32 = 0;
const ROTARY: u32 = 0;
const PAIR_DISTANCE: u32 = 0;
const UNROLLED: u32 = 1;
// Words of a KvVector: 4, or 2 where a head of K, or an offset or stride of the KV layout, is not a multiple of 4 words.
const VECTOR_WORDS: u32 = 4;

struct Params {
  kv_heads: u32,
  qkv_stride: u32,
  out_stride: u32,
  items_at: u32,
  scale: f32,
  window: u32,
  cap: f32,
  block_words: u32,
  k_at: u32,
  k_words: u32,
  v_at: u32,
  v_words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(2) var<storage, read> kv: array<KvVector>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read> angles: array<vec2f>;
@group(0) @binding(5) var<storage, read> vector: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> parts: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> part_stats: array<vec2f>;

const NONE = 0xffffffffu;
const LOWEST = -1e30;
const QUERIES = GROUP * TILE_ROWS;
const QUADS = HEAD_DIM / 4;
// Words of a token's K, and those of its copy, padded against bank conflicts.
const K_WORDS = select(HEAD_DIM, HEAD_DIM / 2, KV_F16 == 1);
const K_STRIDE = K_WORDS + 1;
// Values of a word and of a vector.
const WORD_VALUES = 1 + KV_F16;
const VECTOR_VALUES = VECTOR_WORDS * WORD_VALUES;
const HALF = ROTARY / 2;
// Vectors of a token's K, and those that a thread loads of a tile.
const VECTORS = K_WORDS / VECTOR_WORDS;
const LOADS = (TOKENS * VECTORS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
// Quads of q and k in an unrolled run of the score loop; bounds the registers that their loads take.
const QUADS_AT_ONCE = select(1u, select(8u, 2u, QUERY_BLOCK > 1), QUADS % 8 == 0);
const OUTPUTS = (QUERIES * QUADS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
// Padded against bank conflicts: a thread per query walks its weights.
const WEIGHT_STRIDE = TOKENS + 1;
const QUERY_BLOCKS = (QUERIES + QUERY_BLOCK - 1) / QUERY_BLOCK;

// K of the tile's tokens; once the scores are known, their V.
var<workgroup> tile: array<u32, TOKENS * K_STRIDE>;
// Word offset at which the head's K of each token begins, and that of its V where SAME_STRIDE is 0.
var<workgroup> k_from: array<u32, TOKENS>;
var<workgroup> v_from: array<u32, TOKENS>;
var<workgroup> weights: array<f32, QUERIES * WEIGHT_STRIDE>;
// Online-softmax state per query: of the current split, then (all_...) of all splits before.
var<workgroup> highest: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;
var<workgroup> rescale: array<f32, QUERIES>;
var<workgroup> all_highest: array<f32, QUERIES>;
var<workgroup> all_sums: array<f32, QUERIES>;
var<workgroup> all_rescale: array<f32, QUERIES>;
var<workgroup> split_rescale: array<f32, QUERIES>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn paged_attention(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let item = step[params.items_at] + 8 * workgroup.x;
  let kv_head = workgroup.y;
  let first_row = step[item];
  let num_rows = step[item + 1];
  let first_position = step[item + 2];
  let table = step[item + 3];
  let first_split = step[item + 4];
  let num_splits = step[item + 5];
  let partial = step[item + 6];
  let num_tokens = first_position + num_rows;
  let num_queries = num_rows * GROUP;
  let head_at = kv_head * K_WORDS;
  // Start of the first tile of which some row sees a token: tiles before it would change no bit, and are left out.
  var first_tile = 0u;
  if (HAS_WINDOW == 1) {
    first_tile = (max(first_position + 1, params.window) - params.window) / TOKENS * TOKENS;
  }

  for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
    all_highest[q] = LOWEST;
    all_sums[q] = 0.0;
    // Where splits become partials, attention_merge begins with the sink.
    if (HAS_SINKS == 1 && partial == NONE) {
      all_highest[q] = vector[kv_head * GROUP + q % GROUP];
      all_sums[q] = 1.0;
    }
  }
  var all_values = array<vec4f, OUTPUTS>();

  for (var split = first_split; split < first_split + num_splits; split++) {
    for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
      highest[q] = LOWEST;
      sums[q] = 0.0;
    }
    var values = array<vec4f, OUTPUTS>();
    let end = min((split + 1) * SPLIT, num_tokens);
    for (var first = max(split * SPLIT, first_tile); first < end; first += TOKENS) {
      if (thread < TOKENS) {
        // Clamp to tokens that some row of the item sees: memory of other tokens may hold NaN, and NaN times a weight of 0 is NaN.
        var token = min(first + thread, num_tokens - 1);
        if (HAS_WINDOW == 1) {
          token = max(token, max(first_position + 1, params.window) - params.window);
        }
        let block = step[table + token / BLOCK_SIZE];
        let block_at = block * params.block_words + head_at;
        k_from[thread] = block_at + params.k_at + token % BLOCK_SIZE * params.k_words;
        if (SAME_STRIDE == 0) {
          v_from[thread] = block_at + params.v_at + token % BLOCK_SIZE * params.v_words;
        }
      }
      workgroupBarrier();
      var k: array<KvVector, LOADS>;
      var v: array<KvVector, LOADS>;
      for (var i = 0u; i < LOADS; i++) {
        if (COMPUTED_KEYS == 0) {
          k[i] = kv[k_vector(thread, i)];
        }
      }
      for (var i = 0u; i < LOADS; i++) {
        v[i] = kv[v_vector(thread, i)];
      }
      // This branch is never taken. It uses V before the scores, because compilers would otherwise move the loads of V after them,
      // where nothing hides their latency; and it uses K, so that all loads are issued before the first one is waited for.
      if (unknown(0) != 0) {
        for (var i = 0u; i < LOADS; i++) {
          put(thread, i, k[i] ^ v[i]);
        }
      }
      for (var i = 0u; i < LOADS; i++) {
        if (COMPUTED_KEYS == 1) {
          k[i] = computed_key(thread, i, v[i], first, num_tokens);
        }
        put(thread, i, k[i]);
      }
      workgroupBarrier();

      for (var i = thread; i < QUERY_BLOCKS * TOKENS; i += WORKGROUP_SIZE) {
        score(i / TOKENS * QUERY_BLOCK, i % TOKENS, first, first_row, first_position, num_queries, kv_head);
      }
      workgroupBarrier();

      for (var i = 0u; i < LOADS; i++) {
        put(thread, i, v[i]);
      }
      for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
        var now = highest[q];
        for (var t = 0u; t < bound(TOKENS); t++) {
          now = max(now, weights[q * WEIGHT_STRIDE + t]);
        }
        rescale[q] = exp(highest[q] - now);
        highest[q] = now;
      }
      workgroupBarrier();
      for (var i = thread; i < QUERIES * TOKENS; i += WORKGROUP_SIZE) {
        let at = i / TOKENS * WEIGHT_STRIDE + i % TOKENS;
        let value = weights[at];
        weights[at] = select(exp(value - highest[i / TOKENS]), 0.0, value == LOWEST);
      }
      workgroupBarrier();
      for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
        var sum = 0.0;
        for (var t = 0u; t < bound(TOKENS); t++) {
          sum += weights[q * WEIGHT_STRIDE + t];
        }
        sums[q] = fma(sums[q], rescale[q], sum);
      }
      for (var i = 0u; i < OUTPUTS; i++) {
        values[i] *= rescale[query_of(thread, i)];
      }
      for (var t = 0u; t < bound(TOKENS); t++) {
        // When QUADS divides the workgroup size, all outputs of a thread have the same quad, so that V is read once.
        var of_token = tile_quad(t, thread % QUADS);
        for (var i = 0u; i < OUTPUTS; i++) {
          if (WORKGROUP_SIZE % QUADS != 0) {
            of_token = tile_quad(t, (thread + i * WORKGROUP_SIZE) % QUADS);
          }
          values[i] = fma(vec4f(weights[query_of(thread, i) * WEIGHT_STRIDE + t]), of_token, values[i]);
        }
      }
      workgroupBarrier();
    }

    // Merge the split with the splits before it; when there are none, its bits do not change.
    for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
      let now = max(all_highest[q], highest[q]);
      all_rescale[q] = exp(all_highest[q] - now);
      split_rescale[q] = exp(highest[q] - now);
      all_sums[q] = fma(all_sums[q], all_rescale[q], sums[q] * split_rescale[q]);
      all_highest[q] = now;
    }
    workgroupBarrier();
    for (var i = 0u; i < OUTPUTS; i++) {
      let q = query_of(thread, i);
      all_values[i] = fma(all_values[i], vec4f(all_rescale[q]), values[i] * split_rescale[q]);
    }
    workgroupBarrier();
  }

  for (var i = 0u; i < OUTPUTS; i++) {
    let at = thread + i * WORKGROUP_SIZE;
    let q = at / QUADS;
    if (q < num_queries) {
      let head = kv_head * GROUP + q % GROUP;
      let quad = at % QUADS;
      if (partial == NONE) {
        out[(first_row + q / GROUP) * params.out_stride / 4 + head * QUADS + quad] = all_values[i] * (1.0 / all_sums[q]);
      } else {
        let slot = (partial + q / GROUP * step[item + 7]) * params.kv_heads * GROUP + head;
        parts[slot * QUADS + quad] = all_values[i];
        if (quad == 0) {
          part_stats[slot] = vec2f(all_highest[q], all_sums[q]);
        }
      }
    }
  }
}

// Scores of QUERY_BLOCK queries and one token of the tile.
fn score(first_query: u32, t: u32, first: u32, first_row: u32, first_position: u32, num_queries: u32, kv_head: u32) {
  var dots = array<f32, QUERY_BLOCK>();
  var q_at: array<u32, QUERY_BLOCK>;
  for (var i = 0u; i < QUERY_BLOCK; i++) {
    let q = min(first_query + i, num_queries - 1);
    q_at[i] = (first_row + q / GROUP) * params.qkv_stride / 4 + (kv_head * GROUP + q % GROUP) * QUADS;
  }
  // Fully unrolled, the loads of q would take so many registers that fewer workgroups run side by side.
  for (var start = 0u; start < unknown(QUADS); start += QUADS_AT_ONCE) {
    for (var at = 0u; at < QUADS_AT_ONCE; at++) {
      let quad = start + at;
      let k = tile_quad(t, quad);
      for (var i = 0u; i < QUERY_BLOCK; i++) {
        let q = qkv[q_at[i] + quad];
        var dot = dots[i];
        dot = fma(q.x, k.x, dot);
        dot = fma(q.y, k.y, dot);
        dot = fma(q.z, k.z, dot);
        dots[i] = fma(q.w, k.w, dot);
      }
    }
  }
  for (var i = 0u; i < QUERY_BLOCK; i++) {
    let q = first_query + i;
    if (q < QUERIES) {
      let position = first_position + q / GROUP;
      let token = first + t;
      var is_visible = token <= position && q < num_queries;
      if (HAS_WINDOW == 1) {
        is_visible = is_visible && token + params.window > position;
      }
      var scaled = dots[i] * params.scale;
      if (HAS_CAP == 1) {
        scaled = capped(scaled, params.cap);
      }
      weights[q * WEIGHT_STRIDE + t] = select(LOWEST, scaled, is_visible);
    }
  }
}

// Returns the query of a thread's i-th output; past the last one, the last one again.
fn query_of(thread: u32, i: u32) -> u32 {
  return min((thread + i * WORKGROUP_SIZE) / QUADS, QUERIES - 1);
}

// Returns the position in kv of the thread's i-th vector of the tile's K; past the last vector, the last one again.
fn k_vector(thread: u32, i: u32) -> u32 {
  let at = min(thread + i * WORKGROUP_SIZE, TOKENS * VECTORS - 1);
  return k_from[at / VECTORS] / VECTOR_WORDS + at % VECTORS;
}

fn v_vector(thread: u32, i: u32) -> u32 {
  if (SAME_STRIDE == 1) {
    return k_vector(thread, i) + (params.v_at - params.k_at) / VECTOR_WORDS;
  }
  let at = min(thread + i * WORKGROUP_SIZE, TOKENS * VECTORS - 1);
  return v_from[at / VECTORS] / VECTOR_WORDS + at % VECTORS;
}

// Returns the key that belongs to the thread's i-th vector of V.
fn computed_key(thread: u32, i: u32, own: KvVector, first: u32, num_tokens: u32) -> KvVector {
  let at = min(thread + i * WORKGROUP_SIZE, TOKENS * VECTORS - 1);
  let first_value = at % VECTORS * VECTOR_VALUES;
  let position = min(first + at / VECTORS, num_tokens - 1);
  var other = own;
  if (first_value < HALF) {
    other = kv[v_vector(thread, i) + PAIR_DISTANCE / VECTOR_VALUES];
  } else if (first_value >= PAIR_DISTANCE && first_value < PAIR_DISTANCE + HALF) {
    other = kv[v_vector(thread, i) - PAIR_DISTANCE / VECTOR_VALUES];
  }
  var key: KvVector;
  for (var word = 0u; word < VECTOR_WORDS; word++) {
    let d = first_value + word * WORD_VALUES;
    if (KV_F16 == 1) {
      let values = rotated(unpack2x16float(own[word]), unpack2x16float(other[word]), d, position);
      key[word] = pack2x16float(clamp(values, vec2f(-65504.0), vec2f(65504.0)));
    } else {
      let values = rotated(vec2f(bitcast<f32>(own[word]), 0.0), vec2f(bitcast<f32>(other[word]), 0.0), d, position);
      key[word] = bitcast<u32>(values.x);
    }
  }
  return key;
}

// Returns values d and d + 1 of a key; `other` has the V with which they are rotated.
fn rotated(own: vec2f, other: vec2f, d: u32, position: u32) -> vec2f {
  let key = own * key_weights(d);
  let is_low = d < HALF;
  if (!is_low && (d < PAIR_DISTANCE || d >= PAIR_DISTANCE + HALF)) {
    return key;
  }
  let pair = select(d - PAIR_DISTANCE, d, is_low);
  let first = angles[position * HALF + pair];
  let second = angles[position * HALF + min(pair + 1, HALF - 1)];
  let turned = other * key_weights(select(pair, d + PAIR_DISTANCE, is_low)) * vec2f(first.y, second.y);
  return fma(key, vec2f(first.x, second.x), select(turned, -turned, is_low));
}

fn key_weights(d: u32) -> vec2f {
  return vec2f(vector[d], vector[min(d + 1, HEAD_DIM - 1)]);
}

// Stores the i-th vector of a thread in workgroup memory, each vector of the tile once.
fn put(thread: u32, i: u32, vector: KvVector) {
  let at = thread + i * WORKGROUP_SIZE;
  if (TOKENS * VECTORS % WORKGROUP_SIZE != 0 && at >= TOKENS * VECTORS) {
    return;
  }
  for (var word = 0u; word < VECTOR_WORDS; word++) {
    tile[at / VECTORS * K_STRIDE + at % VECTORS * VECTOR_WORDS + word] = vector[word];
  }
}

fn tile_quad(t: u32, quad: u32) -> vec4f {
  if (KV_F16 == 1) {
    let at = t * K_STRIDE + 2 * quad;
    return vec4f(unpack2x16float(tile[at]), unpack2x16float(tile[at + 1]));
  }
  let at = t * K_STRIDE + 4 * quad;
  return bitcast<vec4f>(vec4u(tile[at], tile[at + 1], tile[at + 2], tile[at + 3]));
}

// A loop's end that the compiler does not know (no row has 2^31 values).
fn unknown(end: u32) -> u32 {
  return end + (params.qkv_stride >> 31);
}

// Hides a loop's end from the software driver's compiler; where UNROLLED is 1, kernel.ts removes the call.
fn bound(end: u32) -> u32 {
  return unknown(end);
}
