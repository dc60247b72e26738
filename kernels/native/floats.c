/**
 * Rows quantised, and products with weights of f32 and f16: layouts and sums are those of kernels/wasm/as/quantise.as.ts and linear_float.as.ts.
 * An output has one accumulator, and its inputs ascend, one fused multiply-add each (E2).
 */
#include "vectors.h"

/** Inputs of a slice: its weights as f32 stay in the first-level cache while rows pass. */
#define SLICE_INPUTS 128

/** Quantises 32 inputs: see kernels/wasm/as/quantise.as.ts. `raised`: how much higher than their values weights are multiplied. */
INLINE void quantise_group(const float *x, int8_t *q, int32_t raised) {
  ints most = magnitude_bits(load_floats(x));
  for (int i = LANES; i < 32; i += LANES) most = larger_bits(most, magnitude_bits(load_floats(x + i)));
  const union { int32_t bits; float value; } highest = {largest_bits(most)};
  const float largest = highest.value;
  // Of a group with an infinity or a NaN, whose bits are the largest of all, no integer is kept: its scale alone says so.
  const int is_finite = highest.bits < 0x7f800000;
  // A largest magnitude up to 1e-36 counts as 0, because the inverse of a smaller one would overflow.
  const floats inverse = splat_float(largest > 1e-36f ? 127.0f / largest : 0.0f);
  ints total = splat_int(0);
  for (int i = 0; i < 32; i += LANES) {
    ints rounded = is_finite ? nearest(multiply(load_floats(x + i), inverse)) : splat_int(0);
    total = add_ints(total, rounded);
    store_low_bytes(q + 16 + i, rounded);
  }
  const int32_t sum = sum_of(total);
  ((float *)q)[0] = largest / 127.0f;
  ((int32_t *)q)[1] = -raised * sum;
  ((float *)q)[2] = (float)sum;
}

/** Quantises rows [first, first + rows) of a product's input. `raises`: whether dot products take weights as bytes without a sign. */
EXPORT void NAME(quantise)(uint8_t *memory, uint32_t at, uint32_t first, uint32_t rows, uint32_t quantised, uint32_t raises) {
  const LinearParams *params = (const LinearParams *)(memory + at);
  const uint32_t format = params->format, inner = params->inner;
  const int32_t raised = format == MXFP4 ? 12 : format == INT4 ? 8 : format == UINT4 || !raises ? 0 : 128;
  int8_t *q = (int8_t *)(memory + quantised);
  for (uint32_t row = 0; row < rows; row++) {
    const float *x = (const float *)(memory + params->x + (size_t)(first + row) * params->x_stride);
    uint32_t k = 0;
    for (; k + 32 <= inner; k += 32, q += Q_GROUP) quantise_group(x + k, q, raised);
    if (k == inner) continue;
    float rest[32] = {0};
    for (uint32_t i = k; i < inner; i++) rest[i - k] = x[i];
    quantise_group(rest, q, raised);
    q += Q_GROUP;
  }
}

/** Weights of `count` inputs of a tile's outputs as f32, [count][TILE_OUTPUTS]; `k` numbers the first. */
INLINE void unpack(const int is_f16, const uint8_t *const *w, uint32_t k, uint32_t count, float *to) {
  for (uint32_t i = 0; i < count; i++, k++)
    UNROLL
    for (int v = 0; v < VECTORS; v++, to += LANES) {
      const uint8_t *const *panels = w + v * VECTOR_PANELS;
      store_floats(to, is_f16 ? load_halves(panels, (size_t)k * 16) : load_wide(panels, (size_t)k * 32));
    }
}

/** sums[rows][TILE_OUTPUTS] += x · w for `count` inputs. */
INLINE void tile(const int rows, const float *x, size_t x_stride, const float *w, uint32_t count, float *sums) {
  floats y[12][VECTORS];
  UNROLL
  for (int r = 0; r < rows; r++)
    UNROLL
    for (int v = 0; v < VECTORS; v++) y[r][v] = load_floats(sums + r * TILE_OUTPUTS + v * LANES);
  for (uint32_t k = 0; k < count; k++, w += TILE_OUTPUTS) {
    floats weights[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) weights[v] = load_floats(w + v * LANES);
    UNROLL
    for (int r = 0; r < rows; r++) {
      floats s = splat_float(x[r * x_stride + k]);
      UNROLL
      for (int v = 0; v < VECTORS; v++) y[r][v] = multiply_add(s, weights[v], y[r][v]);
    }
  }
  UNROLL
  for (int r = 0; r < rows; r++)
    UNROLL
    for (int v = 0; v < VECTORS; v++) store_floats(sums + r * TILE_OUTPUTS + v * LANES, y[r][v]);
}

#define TILE(rows) \
  NOINLINE void tile_##rows(const float *x, size_t x_stride, const float *w, uint32_t count, float *sums) { \
    tile(rows, x, x_stride, w, count, sums); \
  }
#if LANES == 16
TILE(12)
#endif
TILE(6)
TILE(4)
TILE(2)
TILE(1)

static const struct {
  uint32_t rows;
  void (*tile)(const float *x, size_t x_stride, const float *w, uint32_t count, float *sums);
} tiles[] = {
#if LANES == 16
    {12, tile_12},
#endif
    {6, tile_6}, {4, tile_4}, {2, tile_2}, {1, tile_1}};

/** Panels that a row is multiplied by side by side: additions take as long as this many can begin. */
#define ROW_PANELS 8
/** Rows up to which each is multiplied by itself, straight from the panels: weights then come from memory. */
#define FEW_ROWS 3

/** Multiplies each row by `count` panels from `panel` on, `apart` from one another; `count` and `is_f16` are constants. */
INLINE void multiply_panels(const int count, const int is_f16, const uint8_t *memory, const LinearParams *params, uint32_t first, uint32_t rows, uint32_t panel, uint32_t apart) {
  const size_t input_bytes = is_f16 ? 16 : 32, panel_bytes = params->inner * input_bytes;
  for (uint32_t row = first; row < first + rows; row++) {
    const float *x = (const float *)(memory + params->x + (size_t)row * params->x_stride);
    const uint8_t *w = memory + params->weight + panel * panel_bytes;
    eight y[ROW_PANELS];
    UNROLL
    for (int i = 0; i < count; i++) y[i] = eight_zeros();
    for (uint32_t k = 0; k < params->inner; k++, w += input_bytes) {
      UNROLL
      for (int i = 0; i < count; i++) y[i] = add_eight(x[k], load_eight(is_f16, w + i * apart * panel_bytes), y[i]);
    }
    float sums[8 * ROW_PANELS], *to = (float *)(memory + params->out + (size_t)row * params->out_stride);
    UNROLL
    for (int i = 0; i < count; i++) store_eight(sums + 8 * i, y[i]);
    for (int i = 0; i < count; i++) finish(memory, params, to + (size_t)(panel + i * apart) * 8, sums + 8 * i, panel + i * apart);
  }
}

/** Takes one panel of each part of the range at once, long streams that suit the prefetchers of a CPU, then what is left one by one. */
INLINE void multiply_few(const int is_f16, const uint8_t *memory, const LinearParams *params, uint32_t first, uint32_t rows, uint32_t panel, uint32_t panel_end) {
  const uint32_t apart = (panel_end - panel) / ROW_PANELS;
  for (const uint32_t end = panel + apart; panel < end; panel++) multiply_panels(ROW_PANELS, is_f16, memory, params, first, rows, panel, apart);
  for (panel += apart * (ROW_PANELS - 1); panel < panel_end; panel++) multiply_panels(1, is_f16, memory, params, first, rows, panel, 0);
}

/** Computes the outputs of rows [first, first + rows) and panels [panel, panel_end) with weights of f32 or f16. */
EXPORT void NAME(multiply_floats)(uint8_t *memory, uint32_t at, uint32_t first, uint32_t rows, uint32_t panel, uint32_t panel_end) {
  float sums[ROW_BLOCK * TILE_OUTPUTS] __attribute__((aligned(64))), slice[SLICE_INPUTS * TILE_OUTPUTS] __attribute__((aligned(64)));
  const LinearParams *params = (const LinearParams *)(memory + at);
  const uint32_t is_f16 = params->format == F16, inner = params->inner;
  if (rows <= FEW_ROWS) {
    if (is_f16) multiply_few(1, memory, params, first, rows, panel, panel_end);
    else multiply_few(0, memory, params, first, rows, panel, panel_end);
    return;
  }
  const float *x = (const float *)(memory + params->x + (size_t)first * params->x_stride);
  const size_t x_stride = params->x_stride / 4, panel_bytes = (size_t)inner * (is_f16 ? 16 : 32);
  for (; panel < panel_end; panel += TILE_PANELS) {
    const uint32_t panels = panel_end - panel < TILE_PANELS ? panel_end - panel : TILE_PANELS;
    const uint8_t *w[TILE_PANELS];
    for (uint32_t i = 0; i < TILE_PANELS; i++) w[i] = memory + params->weight + (panel + (i < panels ? i : panels - 1)) * panel_bytes;
    for (uint32_t i = 0; i < rows * TILE_OUTPUTS; i++) sums[i] = 0;
    for (uint32_t k = 0; k < inner; k += SLICE_INPUTS) {
      const uint32_t count = inner - k < SLICE_INPUTS ? inner - k : SLICE_INPUTS;
      if (is_f16) unpack(1, w, k, count, slice);
      else unpack(0, w, k, count, slice);
      uint32_t row = 0;
      for (uint32_t i = 0; row < rows; i++)
        for (; row + tiles[i].rows <= rows; row += tiles[i].rows) tiles[i].tile(x + row * x_stride + k, x_stride, slice, count, sums + row * TILE_OUTPUTS);
    }
    for (uint32_t row = 0; row < rows; row++) {
      float *to = (float *)(memory + params->out + (size_t)(first + row) * params->out_stride);
      for (uint32_t i = 0; i < panels; i++) finish(memory, params, to + (size_t)(panel + i) * 8, sums + row * TILE_OUTPUTS + i * 8, panel + i);
    }
  }
}
