/**
 * What both ways through attention share, few and many queries: parameters, scratch, the tokens of a block that a row sees, and values.
 *
 *   scratch  weights [block_size + 4][QUERIES] f32; a block's K and V, 2 · [block_size][head_dim] f32; packed queries of one KV head
 *            [queries / QUERIES][head_dim][QUERIES] f32 and their running maxima and sums, 2 · [queries] f32; a spare partial result
 *            [head_dim] f32 whose contents are ignored; for attention_tile then [heads][rows] partial results and [heads][rows][2]
 *            f32. Numbers of tokens and of queries are rounded up to whole SCORE_TOKENS and QUERIES. kernels/wasm/ops/attention.ts
 *            reserves it.
 */
#ifndef PENSTOCK_ATTENTION_PARTS_H
#define PENSTOCK_ATTENTION_PARTS_H

#include "attention_lanes.h"

/** Parameters of a layer, as in attention_params.as.ts; addresses and strides are bytes. */
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

/** What the functions of one call share: its arguments and the parts of its scratch. */
typedef struct {
  uint8_t *memory;
  const Params *params;
  const Tile *tile;
  uint32_t kv_head_start, kv_head_end;
  /** In f32; `num_queries` is that of a KV head, `queries_size` in whole QUERIES. */
  size_t partial_size;
  uint32_t num_queries, queries_size;
  float *weights, *keys, *values, *queries, *running, *spare, *partials;
  /** Whether `queries` holds those of the call's only KV head already. */
  int is_packed;
} Call;

/** K or V of one KV head, of a block's tokens: those of the next block, to be prefetched, lie `ahead` bytes after them. */
typedef struct {
  const uint8_t *at;
  size_t token_bytes;
  ptrdiff_t ahead;
} Vectors;

/** Queries whose scores are computed together, one per lane. */
#define QUERIES 16
#define QUERY_VECS (QUERIES / LANES)
/** Tokens whose scores are computed together for many queries, and vectors of an output for four queries: as many as registers hold. */
#define SCORE_TOKENS (LANES == 16 ? 8 : 4)
#define VALUE_VECS (LANES == 16 ? 4 : 2)
/** Initial running maximum of a softmax, and the score of an unseen token; finite, because -Infinity - -Infinity is a NaN. */
#define LOWEST -1e30f

INLINE uint32_t min_of_two(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_of_two(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t round_up(uint32_t count, uint32_t unit) { return (count + unit - 1) / unit * unit; }

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
  return position < first ? 0 : min_of_two(num_tokens, position - first + 1);
}

/** Returns the K of a KV head in a block; the next block is prefetched when it is before `ahead_end`. */
INLINE Vectors keys_in(const Call *call, uint32_t block, uint32_t ahead_end, uint32_t kv_head) {
  const Params *p = call->params;
  const uint32_t *table = (const uint32_t *)(call->memory + call->tile->block_table);
  const uint8_t *at = call->memory + p->kv + (size_t)table[block] * p->block_bytes;
  const ptrdiff_t blocks = block + 1 < ahead_end ? (ptrdiff_t)table[block + 1] - table[block] : 0;
  return (Vectors){at + (size_t)kv_head * p->head_dim * (p->is_f16 ? 2 : 4), p->key_token_bytes, blocks * p->block_bytes};
}

/** Returns the V that belongs to stored K. */
INLINE Vectors values_of(const Call *call, Vectors keys) {
  return (Vectors){keys.at + call->params->value_offset, call->params->value_token_bytes, keys.ahead};
}

/** values[i] = 0; `count` is a multiple of 4, here and below. */
INLINE void clear(float *values, uint32_t count) {
  uint32_t i = 0;
  for (; i + LANES <= count; i += LANES) store(values + i, splat(0));
  for (; i < count; i += 4) store4(values + i, (vec4){0});
}

/** values[i] *= factor. */
NOINLINE void multiply(float *values, uint32_t count, float factor) {
  uint32_t i = 0;
  for (; i + LANES <= count; i += LANES) store(values + i, load(values + i) * factor);
  for (; i < count; i += 4) store4(values + i, load4(values + i) * factor);
}

/** Replaces scores [count] by cap · tanh(score · scale), as cap_scores in simd.as.ts; `count` is a multiple of 16. */
NOINLINE void cap_scores(float *scores, uint32_t count, float scale, float cap) {
  for (uint32_t i = 0; i < count; i += LANES) {
    const vec widened = exp_of(load(scores + i) * (2.0f * scale));
    store(scores + i, cap * (1.0f - 2.0f / (1.0f + widened)));
  }
}

/** Converts the V of a block's tokens to [tokens][head_dim] f32. */
NOINLINE void unpack_values(Vectors v, float *to, uint32_t num_tokens, uint32_t head_dim, int is_f16) {
  for (uint32_t t = 0; t < num_tokens; t++, v.at += v.token_bytes, to += head_dim) {
    uint32_t d = 0;
    for (; is_f16 && d + LANES <= head_dim; d += LANES) {
      PREFETCH(v.at + v.ahead + 2 * d);
      store(to + d, load_halves((const uint16_t *)v.at + d));
    }
    for (; is_f16 && d < head_dim; d += 4) store_first(to + d, load_first_halves((const uint16_t *)v.at + d, 4), 4);
    for (; d < head_dim; d += 4) store4(to + d, load4((const float *)v.at + d));
  }
}

/** Returns where a token's vector begins in [tokens / together][head_dim / 4][together][4] f32; `together` is a power of two. */
INLINE float *token_at(float *vectors, uint32_t token, uint32_t head_dim, uint32_t together) {
  return vectors + (size_t)(token & -together) * head_dim + 4 * (token & (together - 1));
}

/**
 * Computes keys that the layer does not store, as compute_keys in attention_keys.as.ts, from values [tokens][head_dim] f32; the first
 * token is at `position`. The keys have the layout of `token_at`.
 */
NOINLINE void compute_keys(const Call *call, uint32_t position, uint32_t num_tokens, uint32_t together) {
  const Params *p = call->params;
  const float *weight = (const float *)(call->memory + p->key_norm);
  const uint32_t half = p->rotary_dim / 2, apart = p->pair_distance;
  for (uint32_t t = 0; t < num_tokens; t++) {
    const float *cos = (const float *)(call->memory + p->cos) + (size_t)(position + t) * half;
    const float *sin = (const float *)(call->memory + p->sin) + (size_t)(position + t) * half;
    const float *values = call->values + (size_t)t * p->head_dim;
    float *key = token_at(call->keys, t, p->head_dim, together);
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
 * Adds weights · V to outputs [d, d + vecs · LANES) of some queries, token by token; when `is_tail`, to the first `count` of them only.
 * The weights of a token are `apart` f32 after those of the one before. `queries`, `is_f16`, `vecs` and `is_tail` are compile-time
 * constants.
 */
INLINE void values_in_registers(const int queries, const int is_f16, const int vecs, const int is_tail, uint32_t d, uint32_t count,
                                const float *weights, size_t apart, uint32_t tokens, Vectors v, float *const *partials) {
  vec sums[4][VALUE_VECS];
  UNROLL for (int q = 0; q < queries; q++)
    UNROLL for (int i = 0; i < vecs; i++)
      sums[q][i] = is_tail ? load_first(partials[q] + d, count) : load(partials[q] + d + i * LANES);
  const uint8_t *at = v.at + (size_t)d * (is_f16 ? 2 : 4);
  for (uint32_t t = 0; t < tokens; t++, at += v.token_bytes, weights += apart) {
    if (is_f16) UNROLL for (int i = 0; i < vecs * LANES; i += 32) PREFETCH(at + v.ahead + 2 * i);
    vec x[VALUE_VECS];
    UNROLL for (int i = 0; i < vecs; i++) {
      if (is_f16) x[i] = is_tail ? load_first_halves((const uint16_t *)at, count) : load_halves((const uint16_t *)at + i * LANES);
      else x[i] = is_tail ? load_first((const float *)at, count) : load((const float *)at + i * LANES);
    }
    UNROLL for (int q = 0; q < queries; q++) {
      const vec weight = splat(weights[q]);
      UNROLL for (int i = 0; i < vecs; i++) sums[q][i] = madd(weight, x[i], sums[q][i]);
    }
  }
  UNROLL for (int q = 0; q < queries; q++) {
    UNROLL for (int i = 0; i < vecs; i++) {
      if (is_tail) store_first(partials[q] + d, sums[q][i], count);
      else store(partials[q] + d + i * LANES, sums[q][i]);
    }
  }
}

/** partials[queries][head_dim] += weights [tokens][apart] · V; `queries` and `is_f16` are compile-time constants. */
INLINE void add_values_of(const int queries, const int is_f16, uint32_t head_dim, const float *weights, size_t apart, uint32_t tokens,
                          Vectors v, float *const *partials) {
  uint32_t d = 0;
  for (; d + VALUE_VECS * LANES <= head_dim; d += VALUE_VECS * LANES)
    values_in_registers(queries, is_f16, VALUE_VECS, 0, d, 0, weights, apart, tokens, v, partials);
  for (; d < head_dim; d += LANES)
    values_in_registers(queries, is_f16, 1, 1, d, min_of_two(LANES, head_dim - d), weights, apart, tokens, v, partials);
}

/** partials[queries][head_dim] += weights [tokens][apart] · V, f32, for one or four queries; two and three have spare partial results. */
NOINLINE void add_values(uint32_t queries, uint32_t head_dim, const float *weights, size_t apart, uint32_t tokens, Vectors v,
                         float *const *partials) {
  if (queries == 1) add_values_of(1, 0, head_dim, weights, apart, tokens, v, partials);
  else add_values_of(4, 0, head_dim, weights, apart, tokens, v, partials);
}

/** partials[queries][head_dim] += weights [tokens][4] · V, f16, for one to four queries. */
NOINLINE void add_halves(uint32_t queries, uint32_t head_dim, const float *weights, uint32_t tokens, Vectors v, float *const *partials) {
  if (queries == 1) add_values_of(1, 1, head_dim, weights, 4, tokens, v, partials);
  else if (queries == 2) add_values_of(2, 1, head_dim, weights, 4, tokens, v, partials);
  else if (queries == 3) add_values_of(3, 1, head_dim, weights, 4, tokens, v, partials);
  else add_values_of(4, 1, head_dim, weights, 4, tokens, v, partials);
}

#endif
