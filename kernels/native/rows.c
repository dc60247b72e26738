/**
 * Kernels that compute each row by itself: rms_norm, silu_mul, rope_store, with the bits of kernels/wasm/as/rows.as.ts and gates.as.ts (E2).
 * Rows [start, end); threads split rows, silu_mul columns too. Strides are bytes; `params` and the addresses in it are byte offsets
 * from `memory`. Only the squares of rms_norm are a sum, in four lanes: several rows are added side by side instead.
 */
#include "attention_lanes.h"

/** Rows whose squares are added side by side: an addition takes as long as this many can begin. */
#define NORM_ROWS 4

/** x and out [rows][width] f32, weight [width] f32; scalar [1] f32, which the output is multiplied by, 0: none. */
typedef struct {
  uint32_t x, x_stride, weight, out, out_stride, width;
  float epsilon;
  uint32_t is_accumulating, scalar;
} RmsNormParams;

/** gates, ups and out [rows][inner] f32. */
typedef struct {
  uint32_t gates, gate_stride, ups, up_stride, out, out_stride, inner;
  float alpha, limit;
} GateParams;

/**
 * qkv [rows][heads + kv_heads · 2][head_dim] f32; positions, slots [rows] u32, slot = block · block_size + offset; query_factors [positions]
 * f32, 0: none. kv: plane K of this layer in block 0; plane V lies value_offset after it, 0: one plane for both.
 */
typedef struct {
  uint32_t qkv, stride, positions, slots, cos, sin, heads, kv_heads, key_heads, head_dim, rotary_dim, pair_distance, query_factors;
  uint32_t kv, value_offset, key_token_bytes, value_token_bytes, block_bytes, block_size, is_f16;
} RopeStoreParams;

INLINE float *floats(uint8_t *memory, uint32_t at, uint32_t row, uint32_t stride) {
  return (float *)(memory + at + (size_t)row * stride);
}

/** Returns 1 / sqrt(mean square + epsilon), from the squares of a row in four lanes and those of its last values, fewer than four. */
static float scale_of(vec4 squares, const float *x, uint32_t width, float epsilon) {
  float sum = (squares[0] + squares[1]) + (squares[2] + squares[3]);
  for (uint32_t i = width & -4; i < width; i++) sum += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(sum / (float)width + epsilon);
}

/** out[i] (+)= weight[i] · (x[i] · scale), then times the scalar. */
static void scale_row(uint8_t *memory, const RmsNormParams *p, const float *x, float scale, float *out) {
  const float *weight = (const float *)(memory + p->weight);
  const float scalar = p->scalar ? *(const float *)(memory + p->scalar) : 1;
  uint32_t i = 0;
  for (; i + LANES <= p->width; i += LANES) {
    vec y = load(weight + i) * (load(x + i) * scale);
    if (p->is_accumulating) y = load(out + i) + y;
    store(out + i, y * scalar);
  }
  for (; i < p->width; i++) {
    const float y = weight[i] * (x[i] * scale);
    out[i] = (p->is_accumulating ? out[i] + y : y) * scalar;
  }
}

/** out[r, :] (+)= weight · x[r, :] / sqrt(mean(x[r, :]²) + epsilon), then out[r, :] *= scalar. */
EXPORT void NAME(rms_norm)(uint8_t *memory, uint32_t params, uint32_t start, uint32_t end) {
  const RmsNormParams *p = (const RmsNormParams *)(memory + params);
  for (uint32_t row = start; row < end; row += NORM_ROWS) {
    const float *x[NORM_ROWS];
    vec4 squares[NORM_ROWS];
    for (uint32_t r = 0; r < NORM_ROWS; r++) {
      x[r] = floats(memory, p->x, row + r < end ? row + r : row, p->x_stride);
      squares[r] = (vec4){0};
    }
    for (uint32_t i = 0; i + 4 <= p->width; i += 4) {
      UNROLL for (uint32_t r = 0; r < NORM_ROWS; r++) squares[r] += load4(x[r] + i) * load4(x[r] + i);
    }
    for (uint32_t r = 0; r < NORM_ROWS && row + r < end; r++)
      scale_row(memory, p, x[r], scale_of(squares[r], x[r], p->width, p->epsilon), floats(memory, p->out, row + r, p->out_stride));
  }
}

INLINE vec silu_of(vec x) { return x / (1.0f + exp_of(-x)); }

/** out[r, i] = silu(gates[r, i]) · ups[r, i] for i in [first, last); silu(v) = v / (1 + e^-v). */
EXPORT void NAME(silu_mul)(uint8_t *memory, uint32_t params, uint32_t start, uint32_t end, uint32_t first, uint32_t last) {
  const GateParams *p = (const GateParams *)(memory + params);
  for (uint32_t row = start; row < end; row++) {
    const float *gates = floats(memory, p->gates, row, p->gate_stride), *ups = floats(memory, p->ups, row, p->up_stride);
    float *out = floats(memory, p->out, row, p->out_stride);
    uint32_t i = first;
    for (; i + LANES <= last; i += LANES) store(out + i, silu_of(load(gates + i)) * load(ups + i));
    for (; i < last; i++) out[i] = silu_of(splat(gates[i]))[0] * ups[i];
  }
}

/** Rotates the pairs (low[i], high[i]) by the angles of a position. */
INLINE void rotate(float *low_at, float *high_at, const float *cos, const float *sin, uint32_t count) {
  uint32_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const vec low = load(low_at + i), high = load(high_at + i), c = load(cos + i), s = load(sin + i);
    store(low_at + i, low * c - high * s);
    store(high_at + i, high * c + low * s);
  }
  for (; i < count; i++) {
    const float low = low_at[i], high = high_at[i];
    low_at[i] = low * cos[i] - high * sin[i];
    high_at[i] = high * cos[i] + low * sin[i];
  }
}

/** Stores values as f32, or as the nearest f16, ties to even, saturating; a NaN becomes the largest f16. */
INLINE void round_store(const float *from, uint8_t *to, uint32_t width, int is_f16) {
  uint32_t i = 0;
  for (; is_f16 && i + LANES <= width; i += LANES) store_halves((uint16_t *)to + i, load(from + i));
  for (; is_f16 && i < width; i++) {
    uint16_t halves[LANES];
    store_halves(halves, splat(from[i]));
    ((uint16_t *)to)[i] = halves[0];
  }
  for (; i < width; i++) ((float *)to)[i] = from[i];
}

/**
 * Rotates rotary_dim values of each head of q and k in place by the angle of the row's position (i pairs with i + pair_distance), and
 * multiplies q by the position's factor. Then stores k and v, rounded to the KV dtype, at the row's slot: v alone where there are no key
 * heads.
 */
EXPORT void NAME(rope_store)(uint8_t *memory, uint32_t params, uint32_t start, uint32_t end) {
  const RopeStoreParams *p = (const RopeStoreParams *)(memory + params);
  const uint32_t half = p->rotary_dim / 2, q_width = p->heads * p->head_dim, kv_width = p->kv_heads * p->head_dim;
  for (uint32_t row = start; row < end; row++) {
    float *q = floats(memory, p->qkv, row, p->stride);
    const uint32_t position = ((const uint32_t *)(memory + p->positions))[row];
    const float *cos = floats(memory, p->cos, position, half * 4), *sin = floats(memory, p->sin, position, half * 4);
    for (uint32_t head = 0; head < p->heads + p->key_heads; head++) {
      float *low = q + (size_t)head * p->head_dim;
      rotate(low, low + p->pair_distance, cos, sin, half);
    }
    if (p->query_factors) {
      const float factor = ((const float *)(memory + p->query_factors))[position];
      for (uint32_t i = 0; i < q_width; i++) q[i] *= factor;
    }
    if (p->kv_heads == 0) continue;
    const uint32_t slot = ((const uint32_t *)(memory + p->slots))[row], offset = slot % p->block_size;
    uint8_t *block = memory + p->kv + (size_t)(slot / p->block_size) * p->block_bytes;
    round_store(q + q_width, block + (size_t)offset * p->key_token_bytes, kv_width, p->is_f16);
    if (p->value_offset == 0) continue;
    round_store(q + q_width + kv_width, block + p->value_offset + (size_t)offset * p->value_token_bytes, kv_width, p->is_f16);
  }
}
