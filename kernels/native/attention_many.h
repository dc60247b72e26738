/**
 * Attention of many queries, as in prefill: a block's K and V are unpacked to f32 and serve all queries of a KV head, QUERIES at a time,
 * each in one lane of the scores. Sums are added in the order of attention_many.as.ts.
 *
 *   q        [queries / QUERIES][head_dim][QUERIES] f32, queries [rows][heads of the group]
 *   k        [tokens / SCORE_TOKENS][head_dim / 4][SCORE_TOKENS][4] f32; v [tokens][head_dim] f32
 *   weights  scores, then weights [tokens][QUERIES] f32
 */
#include "attention_parts.h"

/** Converts the K of a block's tokens, up to the next multiple of FOURS tokens, which is within the block. */
NOINLINE void unpack_keys(Vectors k, float *to, uint32_t num_tokens, uint32_t head_dim, int is_f16) {
  for (uint32_t t = 0; t < num_tokens; t += FOURS, k.at += FOURS * k.token_bytes) {
    float *vector = token_at(to, t, head_dim, SCORE_TOKENS);
    uint32_t d = 0;
    for (; is_f16 && d + LANES <= head_dim; d += LANES) {
      UNROLL for (int i = 0; i < FOURS; i++) PREFETCH(k.at + k.ahead + i * k.token_bytes + 2 * d);
      vec x[FOURS];
      load_tokens_wide(k.at + 2 * d, k.token_bytes, x);
      UNROLL for (int i = 0; i < FOURS; i++) store(vector + (d + 4 * i) * SCORE_TOKENS, x[i]);
    }
    for (; d < head_dim; d += 4) store(vector + d * SCORE_TOKENS, load_tokens(k.at + d * (is_f16 ? 2 : 4), k.token_bytes, is_f16));
  }
}

/** Packs the queries of a KV head, four at a time; lanes past the last query repeat it. */
NOINLINE void pack_queries(const Call *call, uint32_t kv_head) {
  const Params *p = call->params;
  const uint32_t group = p->group, head_dim = p->head_dim;
  const uint8_t *q = call->memory + p->qkv + (size_t)call->tile->row * p->qkv_stride + (size_t)kv_head * group * head_dim * 4;
  // The heads of a group lie side by side, those of the next row far away.
  for (uint32_t row = 1; row < call->tile->rows; row++)
    for (uint32_t at = 0; at < group * head_dim * 4; at += 64) PREFETCH(q + (size_t)row * p->qkv_stride + at);
  for (uint32_t query = 0; query < call->queries_size; query += 4) {
    const float *from[4];
    for (uint32_t lane = 0; lane < 4; lane++) {
      const uint32_t number = min_of_two(query + lane, call->num_queries - 1);
      from[lane] = (const float *)(q + (size_t)(number / group) * p->qkv_stride) + (size_t)(number % group) * head_dim;
    }
    float *to = call->queries + (size_t)(query & -QUERIES) * head_dim + (query & (QUERIES - 1));
    for (uint32_t d = 0; d < head_dim; d += 4, to += 4 * QUERIES) {
      const vec4 a = load4(from[0] + d), b = load4(from[1] + d), c = load4(from[2] + d), e = load4(from[3] + d);
      const vec4 ab0 = SHUFFLE4(a, b, 0, 4, 1, 5), ab1 = SHUFFLE4(a, b, 2, 6, 3, 7);
      const vec4 ce0 = SHUFFLE4(c, e, 0, 4, 1, 5), ce1 = SHUFFLE4(c, e, 2, 6, 3, 7);
      store4(to, SHUFFLE4(ab0, ce0, 0, 1, 4, 5));
      store4(to + QUERIES, SHUFFLE4(ab0, ce0, 2, 3, 6, 7));
      store4(to + 2 * QUERIES, SHUFFLE4(ab1, ce1, 0, 1, 4, 5));
      store4(to + 3 * QUERIES, SHUFFLE4(ab1, ce1, 2, 3, 6, 7));
    }
  }
}

/** Computes scores [tokens][QUERIES], times `scale`, of `tokens` tokens, a compile-time constant. */
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

/** Computes scores [tokens][QUERIES], times `scale`, of tokens [start, end), multiples of 4. */
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
 * Replaces scores [tokens][QUERIES] of tokens [start, end), multiples of 4, by weights e^(score - max), and updates the running maxima and
 * sums. Each query sees tokens [starts, ends) of its lane; the others get weight 0, unless `is_whole`, a compile-time constant. Stores
 * the factors of earlier values and returns whether one of them is not 1.
 */
INLINE int softmax_of_queries(const int is_whole, float *weights, uint32_t start, uint32_t end, const uint32_t *starts, const uint32_t *ends,
                              float *maxima, float *sums, float *factors) {
  int is_rescaled = 0;
  for (int i = 0; i < QUERIES; i += LANES) {
    float *w = weights + i;
    const ints from = (ints)load((const float *)starts + i), to = (ints)load((const float *)ends + i);
    vec highs[4] = {splat(LOWEST), splat(LOWEST), splat(LOWEST), splat(LOWEST)};
    for (uint32_t t = start; t < end; t += 4) {
      UNROLL for (uint32_t part = 0; part < 4; part++) {
        float *at = w + (t + part) * QUERIES;
        vec score = load(at);
        if (!is_whole) store(at, score = choose(is_seen(splat_int(t + part), from, to), score, splat(LOWEST)));
        highs[part] = max_of(highs[part], score);
      }
    }
    const vec before = load(maxima + i);
    const vec highest = max_of(before, max_of(max_of(highs[0], highs[1]), max_of(highs[2], highs[3])));
    const vec factor = exp_below_88(before - highest);
    vec parts[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (uint32_t t = start; t < end; t += 4) {
      UNROLL for (uint32_t part = 0; part < 4; part++) {
        float *at = w + (t + part) * QUERIES;
        vec weight = exp_below_88(load(at) - highest);
        if (!is_whole) weight = zero_unless(is_seen(splat_int(t + part), from, to), weight);
        store(at, weight);
        parts[part] += weight;
      }
    }
    store(maxima + i, highest);
    store(sums + i, load(sums + i) * factor + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
    store(factors + i, factor);
    is_rescaled |= is_any_not_one(factor);
  }
  return is_rescaled;
}

/** Adds the values of tokens [start, end) that each of `count` queries sees; `starts` and `ends` are per query. */
NOINLINE void add_values_each(const Call *call, uint32_t count, const uint32_t *starts, const uint32_t *ends, uint32_t start, uint32_t end,
                              const float *weights, float *const *partials) {
  const uint32_t head_dim = call->params->head_dim;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t first = max_of_two(starts[i], start), last = min_of_two(ends[i], end);
    const Vectors v = {(const uint8_t *)(call->values + (size_t)first * head_dim), head_dim * 4, 0};
    if (first < last) add_values(1, head_dim, weights + first * QUERIES + i, QUERIES, last - first, v, partials + i);
  }
}

/**
 * Adds the values that up to four queries see. Only tokens that all see are taken together: the V of others may be a NaN. Neither
 * `starts` nor `ends` descend, because rows ascend.
 */
static void add_values_of_four(const Call *call, uint32_t count, const uint32_t *starts, const uint32_t *ends, const float *weights,
                               float *const *partials) {
  const uint32_t head_dim = call->params->head_dim, start = starts[0], end = ends[count - 1];
  const int is_shared = starts[count - 1] < ends[0];
  const uint32_t first = is_shared ? starts[count - 1] : end, last = is_shared ? ends[0] : end;
  const Vectors v = {(const uint8_t *)(call->values + (size_t)first * head_dim), head_dim * 4, 0};
  if (start < first) add_values_each(call, count, starts, ends, start, first, weights, partials);
  if (first < last) add_values(count, head_dim, weights + first * QUERIES, QUERIES, last - first, v, partials);
  if (last < end) add_values_each(call, count, starts, ends, last, end, weights, partials);
}

/** Attends to one unpacked block for the QUERIES queries of a KV head from `query` on, and updates partial results [group][rows]. */
static void attend_queries(const Call *call, uint32_t query, uint32_t first, uint32_t num_tokens, float *partials) {
  const Params *p = call->params;
  const uint32_t group = p->group, head_dim = p->head_dim, rows = call->tile->rows, position = call->tile->position;
  const uint32_t count = min_of_two(QUERIES, call->num_queries - query);
  uint32_t starts[QUERIES], ends[QUERIES], row = query / group, head = query % group;
  float *partial[QUERIES], factors[QUERIES];
  for (uint32_t lane = 0; lane < QUERIES; lane++) {
    // Lanes past the last query see what it sees.
    if (lane < count) starts[lane] = start_in(position + row, first, p->window), ends[lane] = end_in(position + row, first, num_tokens);
    else starts[lane] = starts[count - 1], ends[lane] = ends[count - 1];
    partial[lane] = lane < count ? partials + (size_t)(head * rows + row) * call->partial_size : call->spare;
    if (++head == group) head = 0, row++;
  }
  const uint32_t start = starts[0], end = ends[QUERIES - 1], from = start & -4, to = round_up(end, 4);
  if (start >= end) return;
  const int is_whole = start == starts[QUERIES - 1] && end == ends[0] && ((start | end) & 3) == 0, is_capped = p->cap > 0;
  float *weights = call->weights, *maxima = call->running + query, *sums = maxima + call->queries_size;
  scores_of_queries(call->queries + (size_t)query * head_dim, call->keys, head_dim, from, to, is_capped ? 1 : p->scale, weights);
  if (is_capped) cap_scores(weights + from * QUERIES, (to - from) * QUERIES, p->scale / p->cap, p->cap);
  const int is_rescaled = is_whole ? softmax_of_queries(1, weights, from, to, starts, ends, maxima, sums, factors)
                                   : softmax_of_queries(0, weights, from, to, starts, ends, maxima, sums, factors);
  for (uint32_t lane = 0; is_rescaled && lane < count; lane++)
    if (factors[lane] != 1) multiply(partial[lane], head_dim, factors[lane]);
  for (uint32_t lane = 0; lane < count; lane += 4)
    add_values_of_four(call, min_of_two(4, count - lane), starts + lane, ends + lane, weights + lane, partial + lane);
}

/**
 * Attends to blocks [block_start, block_end) for many queries, and updates partial results [heads][rows], which are those of no token
 * before. Blocks before `ahead_end` are prefetched.
 */
static void attend_many(Call *call, uint32_t block_start, uint32_t block_end, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const uint32_t group = p->group, head_dim = p->head_dim, rows = call->tile->rows, position = call->tile->position;
  float *maxima = call->running, *sums = maxima + call->queries_size;
  for (uint32_t kv_head = call->kv_head_start; kv_head < call->kv_head_end; kv_head++) {
    if (!call->is_packed) pack_queries(call, kv_head);
    call->is_packed = call->kv_head_end - call->kv_head_start == 1;
    for (uint32_t i = 0; i < call->queries_size; i++) maxima[i] = LOWEST, sums[i] = 0;
    for (uint32_t block = block_start; block < block_end; block++) {
      const uint32_t first = block * p->block_size, num_tokens = min_of_two(p->block_size, position + rows - first);
      const Vectors keys = keys_in(call, block, ahead_end, kv_head);
      unpack_values(values_of(call, keys), call->values, num_tokens, head_dim, p->is_f16);
      if (p->key_norm) compute_keys(call, first, num_tokens, SCORE_TOKENS);
      else unpack_keys(keys, call->keys, num_tokens, head_dim, p->is_f16);
      // Rows before the block see none of it.
      uint32_t query = position >= first ? 0 : ((first - position) * group) & -QUERIES;
      for (; query < call->num_queries; query += QUERIES) attend_queries(call, query, first, num_tokens, partials);
    }
    for (uint32_t query = 0; query < call->num_queries; query++, partials += call->partial_size) {
      const uint32_t packed = query % rows * group + query / rows;
      partials[head_dim] = maxima[packed];
      partials[head_dim + 1] = sums[packed];
    }
  }
}
