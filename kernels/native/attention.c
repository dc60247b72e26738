/**
 * Paged causal attention: consecutive rows of one sequence, some KV heads with all their query heads.
 *
 * The order of every sum is that of kernels/wasm/as/attention.as.ts, which documents it, and so are the bits (E2): a score in four sums
 * along head_dim, then (0 + 1) + (2 + 3); weights in four sums by token modulo 4; an output token by token; one rescaling per
 * block; spans of SPAN tokens merged in order. Lanes hold different values, never different terms of one sum beyond those four.
 *
 *   Many queries (a query is one head of one row), as in prefill: scores have QUERIES queries in their lanes. A block's K and V are
 *   unpacked to f32 in scratch and serve all queries of the KV head.
 *   Few queries, as in decode: scores have [tokens][4 heads] in their lanes. K and V are converted in registers, once for up to four
 *   heads, and each head's part of the next block is prefetched on the way.
 *
 *   partial result   result of one span for one query: [head_dim] f32 not yet divided by the sum, then running max and sum, 8 bytes unused
 *   scratch  weights [block_size][QUERIES] f32; a block's K and V, [2][block_size][head_dim] f32; packed queries
 *            [queries / QUERIES][head_dim][QUERIES] f32 and their running [2][queries] f32, of one KV head; for attention_tile then
 *            [heads][rows] partial results and [heads][rows][2] f32. kernels/wasm/ops/attention.ts reserves it.
 *   head_dim and block_size are multiples of 4.
 */
#include "attention_lanes.h"

/** Parameters of a layer, as in attention_params.as.ts: addresses and strides are bytes. */
typedef struct {
  uint32_t qkv, qkv_stride, out, out_stride, kv, value_offset, key_token_bytes, value_token_bytes, block_bytes;
  uint32_t kv_heads, group, head_dim, block_size, is_f16, window;
  float scale, cap;
  uint32_t sinks, key_norm, cos, sin, rotary_dim, pair_distance;
} Params;

/** Consecutive rows of one sequence; `position` is that of the first. */
typedef struct {
  uint32_t row, rows, position, block_table;
} Tile;

/** What the functions of one call share. `partial_size` is in f32. */
typedef struct {
  uint8_t *memory;
  const Params *params;
  const Tile *tile;
  uint32_t kv_head_start, kv_head_end;
  size_t partial_size;
  float *weights, *spare, *keys, *values, *queries, *running, *rest;
  /** Whether `queries` holds those of the only KV head already. */
  int is_packed;
} Call;

/** Tokens per span, rounded down to whole blocks, at least one block; SPAN of attention.as.ts. */
#define SPAN 128
/** Queries per KV head and tile from which unpacking a block pays; MANY of attention.as.ts. */
#define MANY 9
/** Queries whose scores are computed together, one per lane. */
#define QUERIES 16
#define QUERY_VECS (QUERIES / LANES)
/** Initial running maximum of a softmax, and the score of an unseen token; finite, because -Infinity - -Infinity is a NaN. */
#define LOWEST -1e30f

#if LANES == 16
/** Tokens whose accumulators are in registers together, a power of 2. */
#define SCORE_TOKENS 8
/** Vectors of an output whose accumulators are in registers together, for four queries. */
#define VALUE_VECS 4
/** Vectors of tokens whose scores are computed together for few queries. */
#define FEW_VECS 2
#else
#define SCORE_TOKENS 4
#define VALUE_VECS 2
#define FEW_VECS 2
#endif

INLINE uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t span_blocks(uint32_t block_size) { return max_u32(1, SPAN / block_size); }

/** Returns the first position that a row at `position` sees; a window of 0 means all. */
INLINE uint32_t first_visible(uint32_t position, uint32_t window) {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

/** Returns the start of the tokens that a row at `position` sees in the block beginning at `first`, counted from there. */
INLINE uint32_t start_in(uint32_t position, uint32_t first, uint32_t window) {
  const uint32_t from = first_visible(position, window);
  return from > first ? from - first : 0;
}

/** Returns the end of those tokens; 0 when the row precedes the block. */
INLINE uint32_t end_in(uint32_t position, uint32_t first, uint32_t num_tokens) {
  return position < first ? 0 : min_u32(num_tokens, position - first + 1);
}

/** values[i] *= factor; `count` is a multiple of 4. */
NOINLINE void multiply(float *values, uint32_t count, float factor) {
  uint32_t i = 0;
  for (; i + LANES <= count; i += LANES) store(values + i, load(values + i) * factor);
  for (; i < count; i += 4) store4(values + i, load4(values + i) * factor);
}

/** values[i] = 0; `count` is a multiple of 4. */
INLINE void clear(float *values, uint32_t count) {
  uint32_t i = 0;
  for (; i + LANES <= count; i += LANES) store(values + i, splat(0));
  for (; i < count; i += 4) store4(values + i, (vec4){0});
}

/** Replaces scores [count] by cap · tanh(score · scale), as cap_scores in simd.as.ts; `count` is a multiple of 16. */
static void cap_scores(float *scores, uint32_t count, float scale, float cap) {
  for (uint32_t i = 0; i < count; i += LANES) {
    const vec widened = exp_of(load(scores + i) * (2.0f * scale));
    store(scores + i, cap * (1.0f - 2.0f / (1.0f + widened)));
  }
}

/** Returns where a token's vector begins whose fours of values alternate with those of `together` - 1 other tokens; 1: [tokens][head_dim]. */
INLINE float *token_at(float *vectors, uint32_t token, uint32_t head_dim, uint32_t together) {
  return vectors + (size_t)(token & -together) * head_dim + 4 * (token & (together - 1));
}

/** Converts the V of a block's tokens, `from_bytes` apart, to [tokens][head_dim] f32. `ahead`: bytes to the V to prefetch. */
NOINLINE void unpack_values(const uint8_t *from, size_t from_bytes, float *to, uint32_t num_tokens, uint32_t head_dim, int is_f16,
                            ptrdiff_t ahead) {
  for (uint32_t t = 0; t < num_tokens; t++, from += from_bytes, to += head_dim) {
    uint32_t d = 0;
    if (is_f16) {
      const uint16_t *halves = (const uint16_t *)from;
      for (; d + LANES <= head_dim; d += LANES) {
        PREFETCH(from + ahead + 2 * d);
        store(to + d, load_halves(halves + d));
      }
      if (d < head_dim) store_first(to + d, load_first_halves(halves + d, head_dim - d), head_dim - d);
    } else {
      for (; d < head_dim; d += 4) store4(to + d, load4((const float *)from + d));
    }
  }
}

/**
 * Converts the K of a block's tokens to [tokens / SCORE_TOKENS][head_dim / 4][SCORE_TOKENS][4] f32, up to the next multiple of FOURS
 * tokens, which is within the block. Arguments as in unpack_values.
 */
NOINLINE void unpack_keys(const uint8_t *from, size_t from_bytes, float *to, uint32_t num_tokens, uint32_t head_dim, int is_f16,
                          ptrdiff_t ahead) {
  for (uint32_t t = 0; t < num_tokens; t += FOURS, from += FOURS * from_bytes) {
    float *vector = token_at(to, t, head_dim, SCORE_TOKENS);
    uint32_t d = 0;
    for (; is_f16 && d + LANES <= head_dim; d += LANES) {
      UNROLL for (int i = 0; i < FOURS; i++) PREFETCH(from + ahead + i * from_bytes + 2 * d);
      vec x[FOURS];
      load_tokens_wide(from + 2 * d, from_bytes, x);
      UNROLL for (int i = 0; i < FOURS; i++) store(vector + (d + 4 * i) * SCORE_TOKENS, x[i]);
    }
    for (; d < head_dim; d += 4) store(vector + d * SCORE_TOKENS, load_tokens(from + d * (is_f16 ? 2 : 4), from_bytes, is_f16));
  }
}

/** Computes keys that the layer does not store, as compute_keys in attention_keys.as.ts, from values [tokens][head_dim] f32, to [tokens / together][head_dim / 4][together][4]. */
NOINLINE void compute_keys(const Call *call, const float *values, uint32_t position, uint32_t num_tokens, uint32_t together, float *to) {
  const Params *p = call->params;
  const float *weight = (const float *)(call->memory + p->key_norm);
  const uint32_t half = p->rotary_dim / 2, apart = p->pair_distance;
  for (uint32_t t = 0; t < num_tokens; t++, values += p->head_dim) {
    const float *cos = (const float *)(call->memory + p->cos) + (size_t)(position + t) * half;
    const float *sin = (const float *)(call->memory + p->sin) + (size_t)(position + t) * half;
    float *key = token_at(to, t, p->head_dim, together);
    for (uint32_t d = 0; d < p->head_dim; d += 4) store4(key + d * together, load4(weight + d) * load4(values + d));
    for (uint32_t d = 0; d < half; d += 4) {
      float *low_at = key + d * together, *high_at = key + (d + apart) * together;
      const vec4 low = load4(low_at), high = load4(high_at), c = load4(cos + d), s = load4(sin + d);
      store4(low_at, low * c - high * s);
      store4(high_at, high * c + low * s);
    }
  }
}

/**
 * Adds weights · V to up to VALUE_VECS vectors of the outputs of some queries, token by token. `weights` of a token are `apart` f32 after
 * those of the one before; only the first `count` lanes are used when `is_tail`. The first three arguments and `is_tail` are
 * compile-time constants.
 */
INLINE void values_in_registers(const int queries, const int vecs, const int is_f16, const int is_tail, uint32_t count, const float *weights,
                                size_t apart, uint32_t tokens, const uint8_t *v, size_t token_bytes, float *const *partials, uint32_t d,
                                ptrdiff_t ahead) {
  vec sums[4][VALUE_VECS];
  UNROLL for (int q = 0; q < queries; q++)
    UNROLL for (int i = 0; i < vecs; i++)
      sums[q][i] = is_tail ? load_first(partials[q] + d, count) : load(partials[q] + d + i * LANES);
  v += (size_t)d * (is_f16 ? 2 : 4);
  for (uint32_t t = 0; t < tokens; t++, v += token_bytes, weights += apart) {
    if (is_f16) UNROLL for (int line = 0; line < vecs * LANES; line += 32) PREFETCH(v + ahead + 2 * line);
    vec x[VALUE_VECS];
    UNROLL for (int i = 0; i < vecs; i++) {
      if (is_f16) x[i] = is_tail ? load_first_halves((const uint16_t *)v, count) : load_halves((const uint16_t *)v + i * LANES);
      else x[i] = is_tail ? load_first((const float *)v, count) : load((const float *)v + i * LANES);
    }
    UNROLL for (int q = 0; q < queries; q++) {
      const vec weight = splat(weights[q]);
      UNROLL for (int i = 0; i < vecs; i++) sums[q][i] = madd(weight, x[i], sums[q][i]);
    }
  }
  UNROLL for (int q = 0; q < queries; q++)
    UNROLL for (int i = 0; i < vecs; i++) {
      if (is_tail) store_first(partials[q] + d, sums[q][i], count);
      else store(partials[q] + d + i * LANES, sums[q][i]);
    }
}

/** partials[queries][head_dim] += weights [tokens][apart] · V [tokens][head_dim]; `queries` and `is_f16` are compile-time constants. */
INLINE void add_values_of(const int queries, const int is_f16, const float *weights, size_t apart, uint32_t tokens, const uint8_t *v,
                          size_t token_bytes, float *const *partials, uint32_t head_dim, ptrdiff_t ahead) {
  uint32_t d = 0;
  for (; d + VALUE_VECS * LANES <= head_dim; d += VALUE_VECS * LANES)
    values_in_registers(queries, VALUE_VECS, is_f16, 0, 0, weights, apart, tokens, v, token_bytes, partials, d, ahead);
  for (; d < head_dim; d += LANES)
    values_in_registers(queries, 1, is_f16, 1, min_u32(LANES, head_dim - d), weights, apart, tokens, v, token_bytes, partials, d, ahead);
}

/** partials[queries][head_dim] += weights [tokens][apart] · V, f32; for two and three queries the other partials may be any room. */
NOINLINE void add_values(uint32_t queries, const float *weights, size_t apart, uint32_t tokens, const uint8_t *v, size_t token_bytes,
                         float *const *partials, uint32_t head_dim) {
  if (queries == 1) add_values_of(1, 0, weights, apart, tokens, v, token_bytes, partials, head_dim, 0);
  else add_values_of(4, 0, weights, apart, tokens, v, token_bytes, partials, head_dim, 0);
}

/** partials[queries][head_dim] += weights [tokens][4] · V, f16, for one to four queries. */
NOINLINE void add_halves(uint32_t queries, const float *weights, uint32_t tokens, const uint8_t *v, size_t token_bytes,
                         float *const *partials, uint32_t head_dim, ptrdiff_t ahead) {
  if (queries == 1) add_values_of(1, 1, weights, 4, tokens, v, token_bytes, partials, head_dim, ahead);
  else if (queries == 2) add_values_of(2, 1, weights, 4, tokens, v, token_bytes, partials, head_dim, ahead);
  else if (queries == 3) add_values_of(3, 1, weights, 4, tokens, v, token_bytes, partials, head_dim, ahead);
  else add_values_of(4, 1, weights, 4, tokens, v, token_bytes, partials, head_dim, ahead);
}

/** Packs queries of one KV head to [queries / QUERIES][head_dim][QUERIES]; lanes past the last one repeat it. */
NOINLINE void pack_queries(const Call *call, uint32_t kv_head) {
  const Params *p = call->params;
  const uint32_t group = p->group, head_dim = p->head_dim, num_queries = call->tile->rows * group;
  const uint8_t *q = call->memory + p->qkv + (size_t)call->tile->row * p->qkv_stride + (size_t)kv_head * group * head_dim * 4;
  // The heads of a group lie side by side, those of the next row far away.
  for (uint32_t row = 1; row < call->tile->rows; row++)
    for (uint32_t at = 0; at < group * head_dim * 4; at += 64) PREFETCH(q + (size_t)row * p->qkv_stride + at);
  for (uint32_t query = 0; query < ((num_queries + QUERIES - 1) & ~(QUERIES - 1)); query += 4) {
    const float *from[4];
    for (uint32_t lane = 0; lane < 4; lane++) {
      const uint32_t number = min_u32(query + lane, num_queries - 1);
      from[lane] = (const float *)(q + (size_t)(number / group) * p->qkv_stride) + (size_t)(number % group) * head_dim;
    }
    float *to = call->queries + (size_t)(query & ~(QUERIES - 1)) * head_dim + (query & (QUERIES - 1));
    for (uint32_t d = 0; d < head_dim; d += 4, to += 4 * QUERIES) {
      const vec4 a = load4(from[0] + d), b = load4(from[1] + d), c = load4(from[2] + d), e = load4(from[3] + d);
      const vec4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const vec4 ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
      store4(to, __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5));
      store4(to + QUERIES, __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7));
      store4(to + 2 * QUERIES, __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5));
      store4(to + 3 * QUERIES, __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7));
    }
  }
}

/**
 * Computes scores [tokens][QUERIES] of `tokens` tokens, a compile-time constant, times `scale`; q [head_dim][QUERIES], k [head_dim /
 * 4][SCORE_TOKENS][4].
 */
INLINE void scores_in_registers(const int tokens, const float *q, const float *k, uint32_t head_dim, float scale, float *scores) {
  vec parts[4][SCORE_TOKENS][QUERY_VECS];
  for (uint32_t part = 0; part < 4; part++) {
    vec sums[SCORE_TOKENS][QUERY_VECS];
    UNROLL for (int t = 0; t < tokens; t++) UNROLL for (int i = 0; i < QUERY_VECS; i++) sums[t][i] = splat(0);
    for (uint32_t d = part; d < head_dim; d += 4) {
      vec x[QUERY_VECS];
      UNROLL for (int i = 0; i < QUERY_VECS; i++) x[i] = load(q + d * QUERIES + i * LANES);
      UNROLL for (int t = 0; t < tokens; t++) {
        const vec y = splat(k[(d - part) * SCORE_TOKENS + t * 4 + part]);
        UNROLL for (int i = 0; i < QUERY_VECS; i++) sums[t][i] = madd(x[i], y, sums[t][i]);
      }
    }
    UNROLL for (int t = 0; t < tokens; t++) UNROLL for (int i = 0; i < QUERY_VECS; i++) parts[part][t][i] = sums[t][i];
  }
  UNROLL for (int t = 0; t < tokens; t++)
    UNROLL for (int i = 0; i < QUERY_VECS; i++)
      store(scores + t * QUERIES + i * LANES, ((parts[0][t][i] + parts[1][t][i]) + (parts[2][t][i] + parts[3][t][i])) * scale);
}

/** Computes scores [tokens][QUERIES] of tokens [start, end), multiples of 4, times `scale`; k as unpack_keys leaves it. */
NOINLINE void scores_of_queries(const float *q, float *k, uint32_t head_dim, uint32_t start, uint32_t end, float scale, float *scores) {
  for (uint32_t t = start; t < end;) {
    const float *keys = token_at(k, t, head_dim, SCORE_TOKENS);
    const int is_whole = t % SCORE_TOKENS == 0 && t + SCORE_TOKENS <= end;
    if (is_whole) scores_in_registers(SCORE_TOKENS, q, keys, head_dim, scale, scores + t * QUERIES);
    else scores_in_registers(4, q, keys, head_dim, scale, scores + t * QUERIES);
    t += is_whole ? SCORE_TOKENS : 4;
  }
}

/**
 * Replaces scores [tokens][QUERIES] of tokens [start, end), multiples of 4, by weights e^(score - max), and updates the
 * running max and sum of each query. Each query sees tokens [starts, ends) of its lane; the others get weight 0, unless `is_whole`, a
 * compile-time constant. Stores the factors of earlier values in `rescale` and returns whether one of them is not 1.
 */
INLINE int softmax_of_queries(const int is_whole, float *weights, uint32_t start, uint32_t end, const uint32_t *starts, const uint32_t *ends,
                              float *maxima, float *totals, float *rescale) {
  int is_rescaled = 0;
  for (int i = 0; i < QUERY_VECS; i++) {
    float *w = weights + i * LANES;
    const ints from = (ints)load((const float *)starts + i * LANES), to = (ints)load((const float *)ends + i * LANES);
    vec highest = splat(LOWEST);
    for (uint32_t t = start; t < end; t++) {
      vec score = load(w + t * QUERIES);
      if (!is_whole) store(w + t * QUERIES, score = choose(is_seen(splat_int(t), from, to), score, splat(LOWEST)));
      highest = max_of(highest, score);
    }
    const vec before = load(maxima + i * LANES);
    highest = max_of(before, highest);
    const vec factor = exp_below_88(before - highest);
    vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (uint32_t t = start; t < end; t += 4) {
      UNROLL for (uint32_t s = 0; s < 4; s++) {
        vec weight = exp_below_88(load(w + (t + s) * QUERIES) - highest);
        if (!is_whole) weight = zero_unless(is_seen(splat_int(t + s), from, to), weight);
        store(w + (t + s) * QUERIES, weight);
        sums[s] += weight;
      }
    }
    store(maxima + i * LANES, highest);
    store(totals + i * LANES, load(totals + i * LANES) * factor + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
    store(rescale + i * LANES, factor);
    is_rescaled |= is_any_not_one(factor);
  }
  return is_rescaled;
}

/** Adds the values that each of up to four queries sees of tokens [first, last), in the lanes of `starts` and `ends`. */
NOINLINE void add_values_each(const Call *call, uint32_t count, const uint32_t *starts, const uint32_t *ends, uint32_t first, uint32_t last,
                            const float *weights, float *const *partials) {
  const uint32_t head_dim = call->params->head_dim;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t start = max_u32(starts[i], first), end = min_u32(ends[i], last);
    if (start >= end) continue;
    const uint8_t *v = (const uint8_t *)(call->values + (size_t)start * head_dim);
    add_values(1, weights + start * QUERIES + i, QUERIES, end - start, v, head_dim * 4, partials + i, head_dim);
  }
}

/** Adds the values that up to four queries see; only tokens that all see are taken together, because other V may be NaN. */
static void add_values_of_four(const Call *call, uint32_t count, const uint32_t *starts, const uint32_t *ends, const float *weights,
                               float *const *partials) {
  const uint32_t head_dim = call->params->head_dim;
  uint32_t start = -1, end = 0, last_start = 0, first_end = -1;
  for (uint32_t i = 0; i < count; i++) {
    start = min_u32(start, starts[i]);
    end = max_u32(end, ends[i]);
    last_start = max_u32(last_start, starts[i]);
    first_end = min_u32(first_end, ends[i]);
  }
  if (last_start >= first_end) last_start = first_end = end;
  add_values_each(call, count, starts, ends, start, last_start, weights, partials);
  if (last_start < first_end) {
    const uint8_t *v = (const uint8_t *)(call->values + (size_t)last_start * head_dim);
    add_values(count, weights + last_start * QUERIES, QUERIES, first_end - last_start, v, head_dim * 4, partials, head_dim);
  }
  add_values_each(call, count, starts, ends, first_end, end, weights, partials);
}

/** Attends to one unpacked block for QUERIES queries of a KV head from `query` on, and updates partial results [group][rows]. */
static void attend_queries(const Call *call, uint32_t query, uint32_t first, uint32_t num_tokens, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  const uint32_t group = p->group, head_dim = p->head_dim, num_queries = tile->rows * group;
  const uint32_t count = min_u32(QUERIES, num_queries - query);
  uint32_t starts[QUERIES], ends[QUERIES];
  float *partial[QUERIES];
  float rescale[QUERIES];
  uint32_t start = num_tokens, end = 0, i = query / group, g = query % group;
  for (uint32_t lane = 0; lane < count; lane++) {
    starts[lane] = start_in(tile->position + i, first, p->window);
    ends[lane] = end_in(tile->position + i, first, num_tokens);
    partial[lane] = partials + (size_t)(g * tile->rows + i) * call->partial_size;
    start = min_u32(start, starts[lane]);
    end = max_u32(end, ends[lane]);
    if (++g == group) g = 0, i++;
  }
  if (start >= end) return;
  int is_whole = ((start | end) & 3) == 0;
  for (uint32_t lane = 0; lane < count; lane++) is_whole &= starts[lane] == start && ends[lane] == end;
  for (uint32_t lane = count; lane < QUERIES; lane++) starts[lane] = start, ends[lane] = end, partial[lane] = call->spare;
  const uint32_t from = start & ~3u, to = (end + 3) & ~3u, running_size = (num_queries + QUERIES - 1) & ~(QUERIES - 1);
  float *weights = call->weights, *maxima = call->running + query, *totals = maxima + running_size;
  const int is_capped = p->cap > 0;
  scores_of_queries(call->queries + (size_t)query * head_dim, call->keys, head_dim, from, to, is_capped ? 1 : p->scale, weights);
  if (is_capped) cap_scores(weights + from * QUERIES, (to - from) * QUERIES, p->scale / p->cap, p->cap);
  const int is_rescaled = is_whole ? softmax_of_queries(1, weights, from, to, starts, ends, maxima, totals, rescale)
                                   : softmax_of_queries(0, weights, from, to, starts, ends, maxima, totals, rescale);
  for (uint32_t lane = 0; is_rescaled && lane < count; lane++)
    if (rescale[lane] != 1) multiply(partial[lane], head_dim, rescale[lane]);
  for (uint32_t lane = 0; lane < count; lane += 4)
    add_values_of_four(call, min_u32(4, count - lane), starts + lane, ends + lane, weights + lane, partial + lane);
}

/** Attends to blocks [block_start, block_end) for many queries; partial results [heads][rows]. `ahead_end`: as in attend_span. */
static void attend_many(Call *call, uint32_t block_start, uint32_t block_end, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  const uint32_t group = p->group, head_dim = p->head_dim, block_size = p->block_size, rows = tile->rows;
  const uint32_t num_queries = rows * group, running_size = (num_queries + QUERIES - 1) & ~(QUERIES - 1);
  const uint32_t *table = (const uint32_t *)(call->memory + tile->block_table);
  for (uint32_t kv_head = call->kv_head_start; kv_head < call->kv_head_end; kv_head++, partials += num_queries * call->partial_size) {
    if (!call->is_packed) pack_queries(call, kv_head);
    call->is_packed = call->kv_head_end - call->kv_head_start == 1;
    for (uint32_t i = 0; i < running_size; i++) call->running[i] = LOWEST, call->running[running_size + i] = 0;
    for (uint32_t block = block_start; block < block_end; block++) {
      const uint32_t first = block * block_size, num_tokens = min_u32(block_size, tile->position + rows - first);
      const uint8_t *k = call->memory + p->kv + (size_t)table[block] * p->block_bytes + (size_t)kv_head * head_dim * (p->is_f16 ? 2 : 4);
      const ptrdiff_t ahead = block + 1 < ahead_end ? ((ptrdiff_t)table[block + 1] - table[block]) * p->block_bytes : 0;
      unpack_values(k + p->value_offset, p->value_token_bytes, call->values, num_tokens, head_dim, p->is_f16, ahead);
      if (p->key_norm) compute_keys(call, call->values, first, num_tokens, SCORE_TOKENS, call->keys);
      else unpack_keys(k, p->key_token_bytes, call->keys, num_tokens, head_dim, p->is_f16, ahead);
      // Rows before the block see none of it.
      uint32_t query = tile->position >= first ? 0 : ((first - tile->position) * group) & ~(QUERIES - 1);
      for (; query < num_queries; query += QUERIES) attend_queries(call, query, first, num_tokens, partials);
    }
    for (uint32_t i = 0, query = 0; i < rows; i++) {
      for (uint32_t g = 0; g < group; g++, query++) {
        float *end = partials + (size_t)(g * rows + i) * call->partial_size + head_dim;
        end[0] = call->running[query];
        end[1] = call->running[running_size + query];
      }
    }
  }
}

/**
 * Computes scores [tokens][4] of tokens [start, end), multiples of 4, for `heads` heads; q [heads][head_dim] f32. `heads` and `is_f16`
 * are compile-time constants.
 */
INLINE void scores_of_heads(const int heads, const int is_f16, const float *q, uint32_t head_dim, const uint8_t *k, size_t token_bytes,
                            uint32_t start, uint32_t end, float *scores, ptrdiff_t ahead) {
  const size_t value_bytes = is_f16 ? 2 : 4;
  for (uint32_t token = start; token < end; token += FEW_VECS * FOURS) {
    const uint8_t *at[FEW_VECS];
    vec sums[FEW_VECS][4];
    UNROLL for (int i = 0; i < FEW_VECS; i++) {
      // Past the end, tokens are computed a second time, and their scores land in the padding of `scores`.
      at[i] = k + (size_t)(token + i * FOURS < end ? token + i * FOURS : token) * token_bytes;
      UNROLL for (int h = 0; h < 4; h++) sums[i][h] = splat(0);
      for (int t = 0; t < FOURS; t++)
        for (size_t line = 0; line < head_dim * value_bytes; line += 64) PREFETCH(at[i] + t * token_bytes + line + ahead);
    }
    uint32_t d = 0;
    if (is_f16 && FOURS > 1) {
      for (; d + LANES <= head_dim; d += LANES) {
        UNROLL for (int i = 0; i < FEW_VECS; i++) {
          vec x[FOURS];
          load_tokens_wide(at[i] + d * 2, token_bytes, x);
          UNROLL for (int part = 0; part < FOURS; part++)
            UNROLL for (int h = 0; h < heads; h++)
              sums[i][h] = madd(repeat4(load4(q + (size_t)h * head_dim + d + 4 * part)), x[part], sums[i][h]);
        }
      }
    }
    for (; d < head_dim; d += 4) {
      UNROLL for (int i = 0; i < FEW_VECS; i++) {
        const vec x = load_tokens(at[i] + d * value_bytes, token_bytes, is_f16);
        UNROLL for (int h = 0; h < heads; h++) sums[i][h] = madd(repeat4(load4(q + (size_t)h * head_dim + d)), x, sums[i][h]);
      }
    }
    UNROLL for (int i = 0; i < FEW_VECS; i++)
      store(scores + (token + i * FOURS) * 4, sums_of_4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
  }
}

/** Computes scores [tokens][4] for one to four heads; f32 of two or three heads are computed for four. */
NOINLINE void scores_of_few(uint32_t heads, int is_f16, const float *q, uint32_t head_dim, const uint8_t *k, size_t token_bytes, uint32_t start,
                            uint32_t end, float *scores, ptrdiff_t ahead) {
  if (!is_f16 && heads == 1) scores_of_heads(1, 0, q, head_dim, k, token_bytes, start, end, scores, ahead);
  else if (!is_f16) scores_of_heads(4, 0, q, head_dim, k, token_bytes, start, end, scores, ahead);
  else if (heads == 1) scores_of_heads(1, 1, q, head_dim, k, token_bytes, start, end, scores, ahead);
  else if (heads == 2) scores_of_heads(2, 1, q, head_dim, k, token_bytes, start, end, scores, ahead);
  else if (heads == 3) scores_of_heads(3, 1, q, head_dim, k, token_bytes, start, end, scores, ahead);
  else scores_of_heads(4, 1, q, head_dim, k, token_bytes, start, end, scores, ahead);
}

/**
 * Replaces scores [tokens][4] by weights, as softmax_of_queries, for up to four heads of a row that sees tokens [start, end). Updates
 * max and sum of the partial results and rescales their earlier values.
 */
static void softmax_of_few(uint32_t heads, float *scores, uint32_t start, uint32_t end, float scale, float *const *partials, uint32_t head_dim) {
  const uint32_t from = start & ~3u, to = (end + 3) & ~3u;
  ints lane_tokens, starts = splat_int(start), ends = splat_int(end);
  for (int lane = 0; lane < LANES; lane++) lane_tokens[lane] = lane / 4;
  vec highest = splat(LOWEST);
  for (uint32_t t = from; t < to; t += FOURS) {
    const vec score = choose(is_seen(splat_int(t) + lane_tokens, starts, ends), load(scores + t * 4) * scale, splat(LOWEST));
    store(scores + t * 4, score);
    highest = max_of(highest, score);
  }
  float lanes[LANES], before[4], totals[4], factors[LANES];
  for (uint32_t h = 0; h < 4; h++) {
    before[h] = h < heads ? partials[h][head_dim] : LOWEST;
    totals[h] = h < heads ? partials[h][head_dim + 1] : 0;
  }
  store(lanes, highest);
  vec4 highest4 = load4(before);
  for (int i = 0; i < FOURS; i++) highest4 = max4(highest4, load4(lanes + 4 * i));
  highest = repeat4(highest4);
  store(factors, exp_below_88(repeat4(load4(before)) - highest));
  // The four sums by token modulo 4 lie side by side: each begins with the first of its tokens.
  vec sums[4 / FOURS];
  for (uint32_t i = 0; i < 4 / FOURS; i++) sums[i] = splat(0);
  for (uint32_t t = from; t < to; t += 4) {
    UNROLL for (uint32_t i = 0; i < 4 / FOURS; i++) {
      const ints token = splat_int(t + i * FOURS) + lane_tokens;
      const vec weight = zero_unless(is_seen(token, starts, ends), exp_below_88(load(scores + (t + i * FOURS) * 4) - highest));
      store(scores + (t + i * FOURS) * 4, weight);
      sums[i] += weight;
    }
  }
  float parts[16];
  for (uint32_t i = 0; i < 4 / FOURS; i++) store(parts + i * LANES, sums[i]);
  const vec4 sum = load4(totals) * load4(factors) + ((load4(parts) + load4(parts + 4)) + (load4(parts + 8) + load4(parts + 12)));
  for (uint32_t h = 0; h < heads; h++) {
    partials[h][head_dim] = highest4[h];
    partials[h][head_dim + 1] = sum[h];
    if (factors[h] != 1) multiply(partials[h], head_dim, factors[h]);
  }
}

/** Attends to blocks [block_start, block_end) for few queries; partial results [heads][rows]. `ahead_end`: as in attend_span. */
static void attend_few(const Call *call, uint32_t block_start, uint32_t block_end, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  const uint32_t group = p->group, head_dim = p->head_dim, block_size = p->block_size, rows = tile->rows;
  const int is_f16 = p->key_norm ? 0 : p->is_f16, is_capped = p->cap > 0;
  const size_t key_bytes = p->key_norm ? head_dim * 4 : p->key_token_bytes, value_bytes = p->key_norm ? head_dim * 4 : p->value_token_bytes;
  const uint32_t *table = (const uint32_t *)(call->memory + tile->block_table);
  for (uint32_t block = block_start; block < block_end; block++) {
    const uint32_t first = block * block_size, num_tokens = min_u32(block_size, tile->position + rows - first);
    const ptrdiff_t next = block + 1 < ahead_end ? ((ptrdiff_t)table[block + 1] - table[block]) * p->block_bytes : 0;
    for (uint32_t kv_head = call->kv_head_start; kv_head < call->kv_head_end; kv_head++) {
      const uint8_t *k = call->memory + p->kv + (size_t)table[block] * p->block_bytes + (size_t)kv_head * head_dim * (p->is_f16 ? 2 : 4);
      const uint8_t *v = k + p->value_offset;
      if (p->key_norm) {
        unpack_values(v, p->value_token_bytes, call->values, num_tokens, head_dim, p->is_f16, next);
        compute_keys(call, call->values, first, num_tokens, 1, call->keys);
        k = (const uint8_t *)call->keys;
        v = (const uint8_t *)call->values;
      }
      for (uint32_t i = 0; i < rows; i++) {
        const uint32_t start = start_in(tile->position + i, first, p->window), end = end_in(tile->position + i, first, num_tokens);
        if (start >= end) continue;
        const float *q = (const float *)(call->memory + p->qkv + (size_t)(tile->row + i) * p->qkv_stride) + (size_t)kv_head * group * head_dim;
        float *partial = partials + (size_t)((kv_head - call->kv_head_start) * group * rows + i) * call->partial_size;
        for (uint32_t g = 0; g < group; g += 4, q += 4 * head_dim) {
          const uint32_t heads = min_u32(4, group - g), from = start & ~3u, to = (end + 3) & ~3u;
          // Only the first heads prefetch, and none do when K and V are in scratch.
          const ptrdiff_t ahead = g == 0 && i == 0 && !p->key_norm ? next : 0;
          float *each[4] = {call->spare, call->spare, call->spare, call->spare};
          for (uint32_t h = 0; h < heads; h++, partial += rows * call->partial_size) each[h] = partial;
          scores_of_few(heads, is_f16, q, head_dim, k, key_bytes, from, to, call->weights, ahead);
          if (is_capped) cap_scores(call->weights + from * 4, (to - from) * 4, p->scale / p->cap, p->cap);
          softmax_of_few(heads, call->weights, start, end, is_capped ? 1 : p->scale, each, head_dim);
          const float *weights = call->weights + start * 4;
          const uint8_t *values = v + start * value_bytes;
          if (is_f16) add_halves(heads, weights, end - start, values, value_bytes, each, head_dim, ahead);
          else add_values(heads, weights, 4, end - start, values, value_bytes, each, head_dim);
        }
      }
    }
  }
}

/** Returns what a call's functions share, with the addresses of its scratch. */
static Call call_of(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end, uint32_t scratch) {
  const Params *p = (const Params *)(memory + params);
  const Tile *rows = (const Tile *)(memory + tile);
  const uint32_t num_queries = (rows->rows * p->group + QUERIES - 1) & ~(QUERIES - 1);
  Call call = {memory, p, rows, kv_head_start, kv_head_end, p->head_dim + 4, 0, 0, 0, 0, 0, 0, 0, 0};
  call.weights = (float *)(memory + (((size_t)scratch + 63) & ~(size_t)63));
  call.keys = call.weights + (size_t)(p->block_size + 4) * QUERIES;
  call.values = call.keys + (size_t)((p->block_size + SCORE_TOKENS - 1) & -SCORE_TOKENS) * p->head_dim;
  call.queries = call.values + (size_t)p->block_size * p->head_dim;
  call.running = call.queries + (size_t)num_queries * p->head_dim;
  call.spare = call.running + 2 * num_queries;
  call.rest = call.spare + p->head_dim;
  return call;
}

/**
 * Computes partial results [heads][rows] of one span. A block before `ahead_end` is prefetched while the one before it is computed:
 * this thread reads it next, here or in a later call.
 */
static void attend_span(Call *call, uint32_t span, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  const uint32_t num_queries = (call->kv_head_end - call->kv_head_start) * p->group * tile->rows;
  for (uint32_t query = 0; query < num_queries; query++) {
    float *partial = partials + query * call->partial_size;
    clear(partial, p->head_dim + 4);
    partial[p->head_dim] = LOWEST;
  }
  const uint32_t blocks = span_blocks(p->block_size), last = tile->position + tile->rows - 1;
  const uint32_t start = max_u32(span * blocks, first_visible(tile->position, p->window) / p->block_size);
  const uint32_t end = min_u32((span + 1) * blocks, last / p->block_size + 1);
  if (tile->rows * p->group >= MANY) attend_many(call, start, end, ahead_end, partials);
  else attend_few(call, start, end, ahead_end, partials);
}

/** Sets [max, sum] of a query before its first span: to those of the head's sink, which has no value, else to those of no token. */
INLINE void begin_total(const Call *call, uint32_t head, float *total) {
  const uint32_t sinks = call->params->sinks;
  total[0] = sinks ? ((const float *)(call->memory + sinks))[head] : LOWEST;
  total[1] = sinks ? 1 : 0;
}

/** Adds a span's partial result to an output and its [max, sum]; a span that the row does not see changes nothing. */
NOINLINE void merge(float *out, float *total, const float *partial, uint32_t head_dim) {
  const float sum = partial[head_dim + 1];
  if (sum == 0) return;
  const float highest = partial[head_dim], before = total[0], now = before < highest ? highest : before;
  const vec factors = exp_below_88((vec){before - now, highest - now});
  const float keep = factors[0], take = factors[1];
  total[0] = now;
  total[1] = total[1] * keep + sum * take;
  uint32_t d = 0;
  for (; d + LANES <= head_dim; d += LANES) store(out + d, load(out + d) * keep + load(partial + d) * take);
  for (; d < head_dim; d += 4) store4(out + d, load4(out + d) * keep + load4(partial + d) * take);
}

/** Returns the output of a row's head. */
static float *out_at(const Call *call, uint32_t row, uint32_t head) {
  const Params *p = call->params;
  return (float *)(call->memory + p->out + (size_t)(call->tile->row + row) * p->out_stride) + (size_t)head * p->head_dim;
}

/** Computes the outputs of a tile's rows for KV heads [kv_head_start, kv_head_end); out [rows][heads][head_dim] f32. */
EXPORT void NAME(attention_tile)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end,
                                 uint32_t scratch) {
  Call call = call_of(memory, params, tile, kv_head_start, kv_head_end, scratch);
  const Params *p = call.params;
  const uint32_t head_dim = p->head_dim, rows = call.tile->rows, position = call.tile->position, last = position + rows - 1;
  const uint32_t first_head = kv_head_start * p->group, num_heads = (kv_head_end - kv_head_start) * p->group;
  float *partials = call.rest, *totals = partials + (size_t)num_heads * rows * call.partial_size;
  for (uint32_t head = 0; head < num_heads; head++) {
    for (uint32_t i = 0; i < rows; i++) {
      clear(out_at(&call, i, first_head + head), head_dim);
      begin_total(&call, first_head + head, totals + 2 * (head * rows + i));
    }
  }
  const uint32_t span_tokens = span_blocks(p->block_size) * p->block_size;
  for (uint32_t span = first_visible(position, p->window) / span_tokens; span * span_tokens <= last; span++) {
    attend_span(&call, span, last / p->block_size + 1, partials);
    for (uint32_t head = 0, query = 0; head < num_heads; head++)
      for (uint32_t i = 0; i < rows; i++, query++)
        merge(out_at(&call, i, first_head + head), totals + 2 * query, partials + query * call.partial_size, head_dim);
  }
  for (uint32_t head = 0, query = 0; head < num_heads; head++)
    for (uint32_t i = 0; i < rows; i++, query++) multiply(out_at(&call, i, first_head + head), head_dim, 1.0f / totals[2 * query + 1]);
}

/**
 * Computes one row's partial results of one span, for KV heads [kv_head_start, kv_head_end), at `partials`. attention_merge makes the
 * output from the partial results of all spans.
 */
EXPORT void NAME(attention_span)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end, uint32_t span,
                                 uint32_t partials, uint32_t scratch) {
  Call call = call_of(memory, params, tile, kv_head_start, kv_head_end, scratch);
  const uint32_t block_size = call.params->block_size;
  const uint32_t ahead_end = min_u32((span + 1) * span_blocks(block_size), call.tile->position / block_size + 1);
  attend_span(&call, span, ahead_end, (float *)(memory + partials));
}

/** Computes the output of one row's KV head from partial results [spans][heads of its group], in order; spans are `span_bytes` apart. */
EXPORT void NAME(attention_merge)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head, uint32_t partials, uint32_t spans,
                                  uint32_t span_bytes, uint32_t scratch) {
  Call call = call_of(memory, params, tile, kv_head, kv_head + 1, scratch);
  const uint32_t group = call.params->group, head_dim = call.params->head_dim;
  for (uint32_t g = 0; g < group; g++) {
    float *out = out_at(&call, 0, kv_head * group + g), total[2];
    clear(out, head_dim);
    begin_total(&call, kv_head * group + g, total);
    const uint8_t *partial = memory + partials + g * call.partial_size * 4;
    for (uint32_t span = 0; span < spans; span++, partial += span_bytes) merge(out, total, (const float *)partial, head_dim);
    multiply(out, head_dim, 1.0f / total[1]);
  }
}
