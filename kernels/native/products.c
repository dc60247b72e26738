/**
 * Products of quantised rows with integer weights. Rows are in the form that dot products of bytes read, [groups] of Q_GROUP bytes
 * (kernels/wasm/as/quantise.as.ts).
 *
 * A group's dot product is an exact integer, whatever the width; groups are then scaled and added in order, one accumulator per output (E2).
 * Panels are read as they are stored, a slice of a tile's panels for all rows, so that it comes from the first-level cache but for the first.
 */
#include "weights.h"

/** sums[rows][TILE_OUTPUTS] += q · w for `count` groups of a tile's panels, from `at` on. */
INLINE void tile(const int rows, const uint32_t format, const int8_t *q, size_t q_stride, const uint8_t *const *w, size_t at, uint32_t count, float *sums) {
  for (; count > 0; count--, q += Q_GROUP, at += group_bytes(format)) {
    LEAVE_IN_MEMORY();
    ints dots[8][VECTORS];
    UNROLL
    for (int r = 0; r < rows; r++)
      UNROLL
      for (int v = 0; v < VECTORS; v++) dots[r][v] = splat_int(((const int32_t *)(q + r * q_stride))[1]);
    UNROLL
    for (int k = 0; k < 8; k++) {
      ints weights[VECTORS];
      UNROLL
      for (int v = 0; v < VECTORS; v++) weights[v] = load_weights(format, w + v * VECTOR_PANELS, at, k);
      UNROLL
      for (int r = 0; r < rows; r++) {
        const ints x = load_inputs(q + r * q_stride + 16 + 4 * k);
        UNROLL
        for (int v = 0; v < VECTORS; v++) dots[r][v] = dot(dots[r][v], weights[v], x);
      }
    }
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
      const floats scales = load_scales(format, w + v * VECTOR_PANELS, at);
      const floats zeros = format == UINT4 ? load_halves(w + v * VECTOR_PANELS, at + 16) : scales;
      UNROLL
      for (int r = 0; r < rows; r++) add_group(format == UINT4, sums + r * TILE_OUTPUTS + v * LANES, dots[r][v], scales, zeros, q + r * q_stride);
    }
  }
}

typedef void Tile(const int8_t *q, size_t q_stride, const uint8_t *const *w, size_t at, uint32_t count, float *sums);

#define TILE(rows, format) \
  NOINLINE void tile_##rows##_##format(const int8_t *q, size_t q_stride, const uint8_t *const *w, size_t at, uint32_t count, float *sums) { \
    tile(rows, format, q, q_stride, w, at, count, sums); \
  }
#define TILES(rows) TILE(rows, INT8) TILE(rows, INT4) TILE(rows, UINT4) TILE(rows, MXFP4) TILE(rows, IQ4)
#define ENTRY(rows, format) [format] = tile_##rows##_##format,
#define ENTRIES(rows) {rows, {ENTRY(rows, INT8) ENTRY(rows, INT4) ENTRY(rows, UINT4) ENTRY(rows, MXFP4) ENTRY(rows, IQ4)}},

/** Tiles by rows, the largest first: what registers hold. */
#if LANES == 16
#define EACH_SIZE(form) form(8) form(4) form(1)
#else
#define EACH_SIZE(form) form(4) form(1)
#endif
EACH_SIZE(TILES)

static const struct {
  uint32_t rows;
  Tile *of_format[IQ4 + 1];
} tiles[] = {EACH_SIZE(ENTRIES)};

static void multiply_panels(const Product *p, const uint32_t *panels, uint32_t num_panels) {
  float sums[ROW_BLOCK * TILE_OUTPUTS] __attribute__((aligned(64)));
  const uint32_t format = p->params->format;
  const size_t group = group_bytes(format), q_stride = (size_t)p->groups * Q_GROUP;
  const uint8_t *w[TILE_PANELS];
  place_panels(p, panels, num_panels, w);
  for (uint32_t i = 0; i < p->rows * TILE_OUTPUTS; i++) sums[i] = 0;
  for (uint32_t from = 0; from < p->groups; from += SLICE) {
    const uint32_t count = p->groups - from < SLICE ? p->groups - from : SLICE;
    const int8_t *q = p->q + (size_t)from * Q_GROUP;
    uint32_t row = 0;
    for (uint32_t i = 0; row < p->rows; i++)
      for (; row + tiles[i].rows <= p->rows; row += tiles[i].rows)
        tiles[i].of_format[format](q + row * q_stride, q_stride, w, from * group, count, sums + row * TILE_OUTPUTS);
  }
  finish_tile(p, panels, num_panels, sums);
}

/** Computes the outputs of rows [first, first + rows) and panels [panel, panel_end); `quantised` has the rows. */
EXPORT void NAME(multiply)(uint8_t *memory, uint32_t at, uint32_t quantised, uint32_t first, uint32_t rows, uint32_t panel, uint32_t panel_end) {
  const Product p = product_of(memory, at, quantised, first, rows);
  uint32_t panels[TILE_PANELS];
  // Each tile takes one panel of each part of the range: a few long streams, which suit the prefetchers of a CPU best.
  const uint32_t apart = (panel_end - panel) / TILE_PANELS;
  for (uint32_t i = 0; i < apart; i++) {
    for (uint32_t k = 0; k < TILE_PANELS; k++) panels[k] = panel + i + k * apart;
    multiply_panels(&p, panels, TILE_PANELS);
  }
  panel += apart * TILE_PANELS;
  if (panel == panel_end) return;
  for (uint32_t k = 0; k < TILE_PANELS; k++) panels[k] = panel + k;
  multiply_panels(&p, panels, panel_end - panel);
}
