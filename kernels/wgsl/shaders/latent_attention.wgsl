// latent_attention: out[r, h, :] = sum over visible t of softmax(query[r, h, :] . kv[t, :] * scale) * kv[t, 0 .. RANK], visible: t <= position(r)
//
//   query    [rows][query_stride] f32: heads of RANK + ROTARY values
//   kv       one layer, as in latent_store.wgsl, VECTOR_WORDS words at a time; params count words: of a block, where the plane begins in it, and
//            of a token
//   step     header and items, as in paged_attention.wgsl
//   out      [rows][out_stride] f32: heads of RANK values
//   parts    [partials][heads][RANK] f32, sums not yet divided; part_stats [partials][heads][2]: highest, sum
//
// One workgroup per item and HEADS_AT_ONCE heads; its queries are up to TILE_ROWS rows times these heads. A tile of TOKENS tokens is loaded
// once, and serves as keys and as values. Tiles at absolute positions, an online softmax, splits of SPLIT tokens that are merged in order, by
// attention_merge where they went to several workgroups: a row's bits depend on its position only (E2).
//
// Scores: a thread takes two queries, two tokens and one part in PARTS of the quads; the parts are then added in order. RANK and ROTARY are
// multiples of 4. UNROLLED 0 is for the software driver, whose compiler would spend seconds on unrolling.
alias KvVector = vec4u;

const WORKGROUP_SIZE: u32 = 256;
const BLOCK_SIZE: u32 = 32;
const RANK: u32 = 512;
const ROTARY: u32 = 64;
const HEADS_AT_ONCE: u32 = 16;
const TILE_ROWS: u32 = 1;
const TOKENS: u32 = 16;
const SPLIT: u32 = 128;
const KV_F16: u32 = 1;
const UNROLLED: u32 = 1;
// Words of a KvVector: 4, or 2 where the plane's offsets and strides are not multiples of 4 words.
const VECTOR_WORDS: u32 = 4;

struct Params {
  heads: u32,
  query_stride: u32,
  out_stride: u32,
  items_at: u32,
  scale: f32,
  block_words: u32,
  plane_at: u32,
  token_words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> query: array<vec4f>;
@group(0) @binding(2) var<storage, read> kv: array<KvVector>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> parts: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> part_stats: array<vec2f>;

const NONE = 0xffffffffu;
const LOWEST = -1e30;
const QUERIES = HEADS_AT_ONCE * TILE_ROWS;
const KEY_QUADS = (RANK + ROTARY) / 4;
const QUADS = RANK / 4;
const KEY_WORDS = select(RANK + ROTARY, (RANK + ROTARY) / 2, KV_F16 == 1);
// Padded against bank conflicts.
const KEY_STRIDE = KEY_WORDS + 1;
const VECTORS = KEY_WORDS / VECTOR_WORDS;
// Parts of a score; fixed, because they are part of its order of summation.
const PARTS = 4u;
const QUERY_PAIRS = (QUERIES + 1) / 2;
const TOKEN_PAIRS = TOKENS / 2;
const OUTPUTS = (QUERIES * QUADS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const WEIGHT_STRIDE = TOKENS + 1;

var<workgroup> tile: array<u32, TOKENS * KEY_STRIDE>;
var<workgroup> dots: array<f32, PARTS * QUERIES * TOKENS>;
var<workgroup> weights: array<f32, QUERIES * WEIGHT_STRIDE>;
// Word offset at which each token of the tile begins.
var<workgroup> token_from: array<u32, TOKENS>;
// Online-softmax state per query: of the current split, then (all_...) of all splits before.
var<workgroup> highest: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;
var<workgroup> rescale: array<f32, QUERIES>;
var<workgroup> all_highest: array<f32, QUERIES>;
var<workgroup> all_sums: array<f32, QUERIES>;
var<workgroup> all_rescale: array<f32, QUERIES>;
var<workgroup> split_rescale: array<f32, QUERIES>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn latent_attention(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let item = step[params.items_at] + 8 * workgroup.x;
  let first_head = workgroup.y * HEADS_AT_ONCE;
  let first_row = step[item];
  let num_rows = step[item + 1];
  let first_position = step[item + 2];
  let table = step[item + 3];
  let first_split = step[item + 4];
  let num_splits = step[item + 5];
  let partial = step[item + 6];
  let num_tokens = first_position + num_rows;

  for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
    all_highest[q] = LOWEST;
    all_sums[q] = 0.0;
  }
  var all_values = array<vec4f, OUTPUTS>();

  for (var split = first_split; split < first_split + num_splits; split++) {
    for (var q = thread; q < QUERIES; q += WORKGROUP_SIZE) {
      highest[q] = LOWEST;
      sums[q] = 0.0;
    }
    var values = array<vec4f, OUTPUTS>();
    let end = min((split + 1) * SPLIT, num_tokens);
    for (var first = split * SPLIT; first < end; first += TOKENS) {
      if (thread < TOKENS) {
        // Clamp to tokens that some row of the item sees: memory of other tokens may hold NaN, and NaN times a weight of 0 is NaN.
        let token = min(first + thread, num_tokens - 1);
        token_from[thread] =
          step[table + token / BLOCK_SIZE] * params.block_words + params.plane_at + token % BLOCK_SIZE * params.token_words;
      }
      workgroupBarrier();
      for (var i = thread; i < TOKENS * VECTORS; i += WORKGROUP_SIZE) {
        let token = i / VECTORS;
        let vector = kv[token_from[token] / VECTOR_WORDS + i % VECTORS];
        for (var word = 0u; word < VECTOR_WORDS; word++) {
          tile[token * KEY_STRIDE + i % VECTORS * VECTOR_WORDS + word] = vector[word];
        }
      }
      workgroupBarrier();

      for (var i = thread; i < PARTS * QUERY_PAIRS * TOKEN_PAIRS; i += WORKGROUP_SIZE) {
        let pair = i / PARTS;
        score(2 * (pair / TOKEN_PAIRS), pair % TOKEN_PAIRS, i % PARTS, first_row, num_rows, first_head);
      }
      workgroupBarrier();

      for (var i = thread; i < QUERIES * TOKENS; i += WORKGROUP_SIZE) {
        let q = i / TOKENS;
        var dot = dots[i] + dots[QUERIES * TOKENS + i];
        dot += dots[2 * QUERIES * TOKENS + i] + dots[3 * QUERIES * TOKENS + i];
        let row = q / HEADS_AT_ONCE;
        let is_visible = first + i % TOKENS <= first_position + row && row < num_rows;
        weights[q * WEIGHT_STRIDE + i % TOKENS] = select(LOWEST, dot * params.scale, is_visible);
      }
      workgroupBarrier();
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
        // When QUADS divides the workgroup size, all outputs of a thread have the same quad, so that the token is read once.
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
    let row = q / HEADS_AT_ONCE;
    let head = first_head + q % HEADS_AT_ONCE;
    if (q < QUERIES && row < num_rows && head < params.heads) {
      let quad = at % QUADS;
      if (partial == NONE) {
        out[(first_row + row) * params.out_stride / 4 + head * QUADS + quad] = all_values[i] * (1.0 / all_sums[q]);
      } else {
        let slot = (partial + row * step[item + 7]) * params.heads + head;
        parts[slot * QUADS + quad] = all_values[i];
        if (quad == 0) {
          part_stats[slot] = vec2f(all_highest[q], all_sums[q]);
        }
      }
    }
  }
}

// One part of the dot products of two neighbouring queries and tokens `pair` and `pair + TOKENS / 2` of the tile.
fn score(first_query: u32, pair: u32, part: u32, first_row: u32, num_rows: u32, first_head: u32) {
  var q_at: array<u32, 2>;
  for (var i = 0u; i < 2; i++) {
    let q = min(first_query + i, QUERIES - 1);
    // Queries past the last row or head repeat the last one; nobody reads their scores.
    let row = first_row + min(q / HEADS_AT_ONCE, num_rows - 1);
    let head = min(first_head + q % HEADS_AT_ONCE, params.heads - 1);
    q_at[i] = row * params.query_stride / 4 + head * KEY_QUADS;
  }
  var sum = array<f32, 4>();
  for (var quad = part; quad < unknown(KEY_QUADS); quad += PARTS) {
    let first = tile_quad(pair, quad);
    let second = tile_quad(pair + TOKEN_PAIRS, quad);
    for (var i = 0u; i < 2; i++) {
      let q = query[q_at[i] + quad];
      sum[2 * i] = add_quad(q, first, sum[2 * i]);
      sum[2 * i + 1] = add_quad(q, second, sum[2 * i + 1]);
    }
  }
  let at = (part * QUERIES + first_query) * TOKENS + pair;
  dots[at] = sum[0];
  dots[at + TOKEN_PAIRS] = sum[1];
  if (first_query + 1 < QUERIES) {
    dots[at + TOKENS] = sum[2];
    dots[at + TOKENS + TOKEN_PAIRS] = sum[3];
  }
}

fn add_quad(q: vec4f, k: vec4f, before: f32) -> f32 {
  var sum = fma(q.x, k.x, before);
  sum = fma(q.y, k.y, sum);
  sum = fma(q.z, k.z, sum);
  return fma(q.w, k.w, sum);
}

// Returns the query of a thread's i-th output; past the last one, the last one again.
fn query_of(thread: u32, i: u32) -> u32 {
  return min((thread + i * WORKGROUP_SIZE) / QUADS, QUERIES - 1);
}

fn tile_quad(t: u32, quad: u32) -> vec4f {
  if (KV_F16 == 1) {
    let at = t * KEY_STRIDE + 2 * quad;
    return vec4f(unpack2x16float(tile[at]), unpack2x16float(tile[at + 1]));
  }
  let at = t * KEY_STRIDE + 4 * quad;
  return bitcast<vec4f>(vec4u(tile[at], tile[at + 1], tile[at + 2], tile[at + 3]));
}

// A loop's end that the compiler does not know (no row has 2^31 values).
fn unknown(end: u32) -> u32 {
  return end + (params.query_stride >> 31);
}

// Hides a loop's end from the software driver's compiler; where UNROLLED is 1, kernel.ts removes the call.
fn bound(end: u32) -> u32 {
  return unknown(end);
}
