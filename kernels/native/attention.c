/**
 * Paged causal attention: consecutive rows of one sequence, some KV heads with all their query heads. A query is one head of one row.
 *
 * The order of every sum is that of kernels/wasm/as/attention.as.ts, which documents it, and so are the bits (E2): a score in four sums
 * along head_dim, then (0 + 1) + (2 + 3); weights in four sums by token modulo 4; an output token by token; one rescaling per
 * block; spans of SPAN tokens merged in order. Lanes hold different values, never terms of one sum beyond those four.
 *
 *   partial result   result of one span for one query: [head_dim] f32 not yet divided by the sum, then running max and sum, 8 bytes unused
 *   scratch  see attention_parts.h
 *   head_dim and block_size are multiples of 4. Addresses are byte offsets from `memory`.
 */
#include "attention_few.h"
#include "attention_many.h"

/** Tokens per span, rounded down to whole blocks, at least one block; SPAN of attention.as.ts. */
#define SPAN 128
/** Queries per KV head and tile from which unpacking a block pays; MANY of attention.as.ts. */
#define MANY 9

INLINE uint32_t span_blocks(uint32_t block_size) { return max_of_two(1, SPAN / block_size); }

static Call call_of(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end, uint32_t scratch) {
  Call call = {.memory = memory, .kv_head_start = kv_head_start, .kv_head_end = kv_head_end};
  const Params *p = call.params = (const Params *)(memory + params);
  call.tile = (const Tile *)(memory + tile);
  call.partial_size = p->head_dim + 4;
  call.num_queries = call.tile->rows * p->group;
  call.queries_size = round_up(call.num_queries, QUERIES);
  call.weights = (float *)(memory + (((size_t)scratch + 63) & -(size_t)64));
  call.keys = call.weights + (size_t)(p->block_size + 4) * QUERIES;
  call.values = call.keys + (size_t)round_up(p->block_size, SCORE_TOKENS) * p->head_dim;
  call.queries = call.values + (size_t)p->block_size * p->head_dim;
  call.running = call.queries + (size_t)call.queries_size * p->head_dim;
  call.spare = call.running + 2 * call.queries_size;
  call.partials = call.spare + p->head_dim;
  return call;
}

/**
 * Computes partial results [heads][rows] of one span. A block before `ahead_end` is prefetched while the one before it is computed: this
 * thread reads it next, here or in a later call.
 */
static void attend_span(Call *call, uint32_t span, uint32_t ahead_end, float *partials) {
  const Params *p = call->params;
  const Tile *tile = call->tile;
  for (uint32_t query = 0; query < (call->kv_head_end - call->kv_head_start) * call->num_queries; query++) {
    float *partial = partials + query * call->partial_size;
    clear(partial, call->partial_size);
    partial[p->head_dim] = LOWEST;
  }
  const uint32_t blocks = span_blocks(p->block_size), last = tile->position + tile->rows - 1;
  const uint32_t start = max_of_two(span * blocks, first_visible(tile->position, p->window) / p->block_size);
  const uint32_t end = min_of_two((span + 1) * blocks, last / p->block_size + 1);
  if (call->num_queries >= MANY) attend_many(call, start, end, ahead_end, partials);
  else attend_few(call, start, end, ahead_end, partials);
}

/** Returns the output of a row's head. */
INLINE float *out_at(const Call *call, uint32_t row, uint32_t head) {
  const Params *p = call->params;
  return (float *)(call->memory + p->out + (size_t)(call->tile->row + row) * p->out_stride) + (size_t)head * p->head_dim;
}

/** Sets [max, sum] of a query before its first span: to those of the head's sink, which has no value, else to those of no token. */
INLINE void begin_total(const Call *call, uint32_t head, float *total) {
  const uint32_t sinks = call->params->sinks;
  total[0] = sinks ? ((const float *)(call->memory + sinks))[head] : LOWEST;
  total[1] = sinks ? 1 : 0;
}

/**
 * Adds a span's partial result to an output and its [max, sum]; a span that the row does not see changes nothing. The first span is added
 * to zero, and after the last one the output is divided by the sum.
 */
NOINLINE void merge(float *out, float *total, const float *partial, uint32_t head_dim, int is_first, int is_last) {
  const float sum = partial[head_dim + 1];
  if (sum == 0) {
    if (is_first) clear(out, head_dim);
    if (is_last) multiply(out, head_dim, 1.0f / total[1]);
    return;
  }
  const float highest = partial[head_dim], before = total[0], now = before < highest ? highest : before;
  const vec factors = exp_below_88((vec){before - now, highest - now});
  const float keep = factors[0], take = factors[1];
  total[0] = now;
  total[1] = total[1] * keep + sum * take;
  const float inverse = is_last ? 1.0f / total[1] : 1;
  for (uint32_t d = 0; d < head_dim; d += LANES) {
    const uint32_t count = min_of_two(LANES, head_dim - d);
    const vec kept = is_first ? splat(0) : load_first(out + d, count);
    store_first(out + d, (kept * keep + load_first(partial + d, count) * take) * inverse, count);
  }
}

/** Computes the outputs of a tile's rows, [rows][heads][head_dim] f32, for KV heads [kv_head_start, kv_head_end). */
EXPORT void NAME(attention_tile)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end,
                                 uint32_t scratch) {
  Call call = call_of(memory, params, tile, kv_head_start, kv_head_end, scratch);
  const Params *p = call.params;
  const uint32_t head_dim = p->head_dim, rows = call.tile->rows, position = call.tile->position, last = position + rows - 1;
  const uint32_t head_start = kv_head_start * p->group, head_end = kv_head_end * p->group;
  float *totals = call.partials + (size_t)(head_end - head_start) * rows * call.partial_size, *total = totals;
  for (uint32_t head = head_start; head < head_end; head++)
    for (uint32_t i = 0; i < rows; i++, total += 2) begin_total(&call, head, total);
  const uint32_t span_tokens = span_blocks(p->block_size) * p->block_size;
  const uint32_t first_span = first_visible(position, p->window) / span_tokens, last_span = last / span_tokens;
  for (uint32_t span = first_span; span <= last_span; span++) {
    attend_span(&call, span, last / p->block_size + 1, call.partials);
    const float *partial = call.partials;
    total = totals;
    for (uint32_t head = head_start; head < head_end; head++)
      for (uint32_t i = 0; i < rows; i++, total += 2, partial += call.partial_size)
        merge(out_at(&call, i, head), total, partial, head_dim, span == first_span, span == last_span);
  }
}

/**
 * Computes one row's partial results of one span, for KV heads [kv_head_start, kv_head_end), at `partials`. attention_merge makes the
 * output from the partial results of all spans.
 */
EXPORT void NAME(attention_span)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head_start, uint32_t kv_head_end, uint32_t span,
                                 uint32_t partials, uint32_t scratch) {
  Call call = call_of(memory, params, tile, kv_head_start, kv_head_end, scratch);
  const uint32_t block_size = call.params->block_size;
  const uint32_t ahead_end = min_of_two((span + 1) * span_blocks(block_size), call.tile->position / block_size + 1);
  attend_span(&call, span, ahead_end, (float *)(memory + partials));
}

/** Computes the output of one row's KV head from partial results [spans][heads of its group], in order; spans are `span_bytes` apart. */
EXPORT void NAME(attention_merge)(uint8_t *memory, uint32_t params, uint32_t tile, uint32_t kv_head, uint32_t partials, uint32_t spans,
                                  uint32_t span_bytes, uint32_t scratch) {
  const Call call = call_of(memory, params, tile, kv_head, kv_head + 1, scratch);
  const uint32_t group = call.params->group, head_dim = call.params->head_dim;
  for (uint32_t g = 0; g < group; g++) {
    float *out = out_at(&call, 0, kv_head * group + g), total[2];
    begin_total(&call, kv_head * group + g, total);
    const uint8_t *partial = memory + partials + g * call.partial_size * 4;
    for (uint32_t span = 0; span < spans; span++, partial += span_bytes)
      merge(out, total, (const float *)partial, head_dim, span == 0, span + 1 == spans);
  }
}
