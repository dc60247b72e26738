/** Weights of integers in panels, as a product's kernels read them: layouts are those of kernels/wasm/as/linear_int.as.ts. */
#ifndef PENSTOCK_WEIGHTS_H
#define PENSTOCK_WEIGHTS_H

#include "vectors.h"

/** Groups of a slice: its weights stay in the first-level cache while rows pass. */
#define SLICE 16

/** Returns the bytes of 32 inputs of a panel. */
INLINE size_t group_bytes(uint32_t format) {
  return format == INT8 ? 272 : format == UINT4 ? 160 : format == MXFP4 ? 136 : 144;
}

/** Returns the bytes that precede the integers of a panel's group. */
INLINE size_t head_bytes(uint32_t format) { return format == UINT4 ? 32 : format == MXFP4 ? 8 : 16; }

/** Integers of mxfp4 plus 12. */
static const uint8_t raised_mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
/** Integers of iq4 as dot products take them: as they are, as bytes with a sign, or plus 128; bytes of int8 alike. */
#ifdef DOT_IS_SIGNED
static const uint8_t iq4_bytes[16] = {129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113};
#define INT8_BYTES(x) _mm256_xor_si256(x, _mm256_set1_epi8(-128))
#else
static const uint8_t iq4_bytes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
#define INT8_BYTES(x) (x)
#endif

/** Returns the weights of quad `k` of a group, which begins `at` bytes into each of a vector's panels. */
INLINE ints load_weights(const uint32_t format, const uint8_t *const *w, size_t at, int k) {
  if (format == INT8) return INT8_BYTES(load_panels(w, at + 16 + 32 * k));
  ints codes = load_panels(w, at + head_bytes(format) + 32 * (k >> 1));
  codes = k & 1 ? high_codes(codes) : low_codes(codes);
  if (format == MXFP4) return entries(raised_mxfp4, codes);
  return format == IQ4 ? entries(iq4_bytes, codes) : codes;
}

/** Returns the scales of a vector's outputs in the group that begins `at` bytes into its panels. */
INLINE floats load_scales(const uint32_t format, const uint8_t *const *w, size_t at) {
  if (format == MXFP4) return load_exponents(w, at);
  floats halves = load_halves(w, at);
  // Integers of iq4 count 64 times.
  return format == IQ4 ? multiply(halves, splat_float(0x1p-6f)) : halves;
}

/** Returns four inputs of a row in every lane. */
INLINE ints load_inputs(const int8_t *q) { return splat_int(*(const int32_t *)q); }

/** Adds a group's integer sums of a vector of outputs to the f32 sums; `q` is the row's group. */
INLINE void add_group(const int has_zeros, float *sums, ints dots, floats scales, floats zeros, const int8_t *q) {
  floats value = to_floats(dots);
  if (has_zeros) value = subtract(value, multiply(zeros, splat_float(((const float *)q)[2])));
  store_floats(sums, multiply_add(value, multiply(scales, splat_float(((const float *)q)[0])), load_floats(sums)));
}

/** A product as one call computes it: its quantised rows, the first row's outputs, numbers of rows and of groups of a row. */
typedef struct {
  const uint8_t *memory;
  const LinearParams *params;
  const int8_t *q;
  uint8_t *out;
  uint32_t rows, groups;
} Product;

INLINE Product product_of(const uint8_t *memory, uint32_t at, uint32_t quantised, uint32_t first, uint32_t rows) {
  const LinearParams *params = (const LinearParams *)(memory + at);
  uint8_t *out = (uint8_t *)memory + params->out + (size_t)first * params->out_stride;
  return (Product){memory, params, (const int8_t *)(memory + quantised), out, rows, (params->inner + 31) / 32};
}

/** Writes where a tile's panels begin; beyond the `num_panels` that are wanted, the last is repeated. */
INLINE void place_panels(const Product *p, const uint32_t *panels, uint32_t num_panels, const uint8_t **w) {
  const size_t panel_bytes = p->groups * group_bytes(p->params->format);
  for (uint32_t i = 0; i < TILE_PANELS; i++)
    w[i] = p->memory + p->params->weight + panels[i < num_panels ? i : num_panels - 1] * panel_bytes;
}

/** Stores the sums [rows][TILE_OUTPUTS] of a tile's first panels. */
INLINE void finish_tile(const Product *p, const uint32_t *panels, uint32_t num_panels, const float *sums) {
  for (uint32_t row = 0; row < p->rows; row++) {
    float *to = (float *)(p->out + (size_t)row * p->params->out_stride);
    for (uint32_t i = 0; i < num_panels; i++)
      finish(p->memory, p->params, to + (size_t)panels[i] * 8, sums + row * TILE_OUTPUTS + i * 8, panels[i]);
  }
}

#endif
