/**
 * Attention of few queries, as in decode: scores have [tokens][4 heads] in their lanes. K and V are converted in registers, once for up to
 * four heads, and each KV head's part of the next block is prefetched on the way. Sums are added in the order of attention_few.as.ts.
 */
#include "attention_parts.h"

/** Vectors of FOURS tokens whose scores are computed together. */
#define FEW_VECS 2

/** Computes scores [tokens][4] of tokens [start, end), multiples of 4; q [heads][head_dim] f32. The first two are compile-time constants. */
INLINE void scores_of_heads(const int heads, const int is_f16, const float *q, uint32_t head_dim, Vectors k, uint32_t start, uint32_t end,
                            float *scores) {
  const size_t value_bytes = is_f16 ? 2 : 4, bytes = k.token_bytes;
  for (uint32_t token = start; token < end; token += FEW_VECS * FOURS) {
    const uint8_t *at[FEW_VECS];
    vec sums[FEW_VECS][4];
    UNROLL for (int i = 0; i < FEW_VECS; i++) {
      // Past the end, tokens are computed a second time, and their scores land in the padding of `scores`.
      at[i] = k.at + (token + i * FOURS < end ? token + i * FOURS : token) * bytes;
      UNROLL for (int head = 0; head < 4; head++) sums[i][head] = splat(0);
      for (int t = 0; t < FOURS; t++)
        for (uint32_t line = 0; line < head_dim * value_bytes; line += 64) PREFETCH(at[i] + t * bytes + line + k.ahead);
    }
    uint32_t d = 0;
    for (; is_f16 && d + LANES <= head_dim; d += LANES) {
      UNROLL for (int i = 0; i < FEW_VECS; i++) {
        vec x[FOURS];
        load_tokens_wide(at[i] + d * 2, bytes, x);
        UNROLL for (int part = 0; part < FOURS; part++)
          UNROLL for (int head = 0; head < heads; head++)
            sums[i][head] = madd(repeat4(load4(q + head * head_dim + d + 4 * part)), x[part], sums[i][head]);
      }
    }
    for (; d < head_dim; d += 4) {
      UNROLL for (int i = 0; i < FEW_VECS; i++) {
        const vec x = load_tokens(at[i] + d * value_bytes, bytes, is_f16);
        UNROLL for (int head = 0; head < heads; head++) sums[i][head] = madd(repeat4(load4(q + head * head_dim + d)), x, sums[i][head]);
      }
    }
    UNROLL for (int i = 0; i < FEW_VECS; i++)
      store(scores + (token + i * FOURS) * 4, sums_of_4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
  }
}

/** Computes scores [tokens][4] of one to four heads; f32 K of two or three heads is computed for four, whose q lie behind. */
NOINLINE void scores_of_few(uint32_t heads, int is_f16, const float *q, uint32_t head_dim, Vectors k, uint32_t start, uint32_t end,
                            float *scores) {
  if (!is_f16 && heads == 1) scores_of_heads(1, 0, q, head_dim, k, start, end, scores);
  else if (!is_f16) scores_of_heads(4, 0, q, head_dim, k, start, end, scores);
  else if (heads == 1) scores_of_heads(1, 1, q, head_dim, k, start, end, scores);
  else if (heads == 2) scores_of_heads(2, 1, q, head_dim, k, start, end, scores);
  else if (heads == 3) scores_of_heads(3, 1, q, head_dim, k, start, end, scores);
  else scores_of_heads(4, 1, q, head_dim, k, start, end, scores);
}

/**
 * Replaces scores [tokens][4] by weights e^(score · scale - max), for up to four heads of a row that sees tokens [start, end); others
 * get weight 0. Updates max and sum of the partial results and rescales their earlier values.
 */
NOINLINE void softmax_of_few(uint32_t heads, float *scores, uint32_t start, uint32_t end, float scale, float *const *partials,
                             uint32_t head_dim) {
  const uint32_t from = start & -4, to = round_up(end, 4);
  ints lane_tokens, starts = splat_int(start), ends = splat_int(end);
  for (int lane = 0; lane < LANES; lane++) lane_tokens[lane] = lane / 4;
  vec highest = splat(LOWEST);
  for (uint32_t t = from; t < to; t += FOURS) {
    const vec score = choose(is_seen(splat_int(t) + lane_tokens, starts, ends), load(scores + t * 4) * scale, splat(LOWEST));
    store(scores + t * 4, score);
    highest = max_of(highest, score);
  }
  float lanes[LANES], factors[LANES], parts[16], before[4] = {LOWEST, LOWEST, LOWEST, LOWEST}, sums_before[4] = {0};
  for (uint32_t head = 0; head < heads; head++) {
    before[head] = partials[head][head_dim];
    sums_before[head] = partials[head][head_dim + 1];
  }
  store(lanes, highest);
  vec4 highest4 = load4(before);
  for (int i = 0; i < FOURS; i++) highest4 = max4(highest4, load4(lanes + 4 * i));
  highest = repeat4(highest4);
  store(factors, exp_below_88(repeat4(load4(before)) - highest));
  // The four sums by token modulo 4 lie side by side.
  vec sums[4 / FOURS];
  for (uint32_t i = 0; i < 4 / FOURS; i++) sums[i] = splat(0);
  for (uint32_t t = from; t < to; t += 4) {
    UNROLL for (uint32_t i = 0; i < 4 / FOURS; i++) {
      float *at = scores + (t + i * FOURS) * 4;
      const mask m = is_seen(splat_int(t + i * FOURS) + lane_tokens, starts, ends);
      const vec weight = zero_unless(m, exp_below_88(load(at) - highest));
      store(at, weight);
      sums[i] += weight;
    }
  }
  for (uint32_t i = 0; i < 4 / FOURS; i++) store(parts + i * LANES, sums[i]);
  const vec4 sum = (load4(parts) + load4(parts + 4)) + (load4(parts + 8) + load4(parts + 12));
  const vec4 sums_now = load4(sums_before) * load4(factors) + sum;
  for (uint32_t head = 0; head < heads; head++) {
    partials[head][head_dim] = highest4[head];
    partials[head][head_dim + 1] = sums_now[head];
    if (factors[head] != 1) multiply(partials[head], head_dim, factors[head]);
  }
}

/** Attends to blocks [block_start, block_end) for few queries, as attend_many. */
static void attend_few(const Call *call, uint32_t block_start, uint32_t block_end, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  const uint32_t group = p->group, head_dim = p->head_dim, rows = tile->rows;
  // Computed keys, and the values that they are computed from, are f32 in scratch.
  const int is_f16 = p->key_norm ? 0 : p->is_f16, is_capped = p->cap > 0;
  const Vectors computed = {(const uint8_t *)call->keys, head_dim * 4, 0}, unpacked = {(const uint8_t *)call->values, head_dim * 4, 0};
  for (uint32_t block = block_start; block < block_end; block++) {
    const uint32_t first = block * p->block_size, num_tokens = min_of_two(p->block_size, tile->position + rows - first);
    float *partial = partials;
    for (uint32_t kv_head = call->kv_head_start; kv_head < call->kv_head_end; kv_head++, partial += group * rows * call->partial_size) {
      Vectors k = keys_in(call, block, ahead_end, kv_head), v = values_of(call, k);
      if (p->key_norm) {
        unpack_values(v, call->values, num_tokens, head_dim, p->is_f16);
        compute_keys(call, first, num_tokens, 1);
        k = computed, v = unpacked;
      }
      for (uint32_t i = 0; i < rows; i++) {
        const uint32_t start = start_in(tile->position + i, first, p->window), end = end_in(tile->position + i, first, num_tokens);
        const float *q = (const float *)(call->memory + p->qkv + (size_t)(tile->row + i) * p->qkv_stride) + (size_t)kv_head * group * head_dim;
        for (uint32_t g = 0; start < end && g < group; g += 4, q += 4 * head_dim) {
          const uint32_t heads = min_of_two(4, group - g), from = start & -4, to = round_up(end, 4);
          float *scores = call->weights, *each[4] = {call->spare, call->spare, call->spare, call->spare};
          for (uint32_t head = 0; head < heads; head++) each[head] = partial + (size_t)((g + head) * rows + i) * call->partial_size;
          scores_of_few(heads, is_f16, q, head_dim, k, from, to, scores);
          if (is_capped) cap_scores(scores + from * 4, (to - from) * 4, p->scale / p->cap, p->cap);
          softmax_of_few(heads, scores, start, end, is_capped ? 1 : p->scale, each, head_dim);
          const Vectors seen = {v.at + start * v.token_bytes, v.token_bytes, v.ahead};
          if (is_f16) add_halves(heads, head_dim, scores + start * 4, end - start, seen, each);
          else add_values(heads, head_dim, scores + start * 4, 4, end - start, seen, each);
          // The first heads have prefetched the next block.
          k.ahead = v.ahead = 0;
        }
      }
    }
  }
}
