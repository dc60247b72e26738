/**
 * Products of quantised rows with integer weights in the tiles of AMX: see products.c, whose bits these are. Sixteen rows and sixteen outputs
 * are multiplied in one instruction; rows beyond a multiple of sixteen go to the vectors of AVX-512.
 */
#include "weights.h"

#define TILE_ROWS 16

#if defined(ISA_PLAIN)

#define VECTOR_MULTIPLY multiply_plain

/** The tile registers: C tiles 0 to 3 of 16 x 16 sums, A tiles 4 and 5 of 16 rows, B tiles 6 and 7 of 8 quads by 16 outputs. */
typedef struct { uint8_t of[8][1024]; } TileRegisters;
static void tile_copy(uint8_t *to, const uint8_t *from, size_t stride, int rows, int bytes) {
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < bytes; i++) to[r * bytes + i] = from[r * stride + i];
}
#define TILE_STATE TileRegisters tile_registers
#define TILE_CONFIGURE()
#define TILE_RELEASE()
#define LOAD_ROWS(t, from, stride) tile_copy(tile_registers.of[t], (const uint8_t *)(from), stride, 16, 32)
#define LOAD_WEIGHTS(t, from, stride) tile_copy(tile_registers.of[t], from, stride, 8, 64)
#define MULTIPLY(c, a, b, to) \
  for (int m = 0; m < 16; m++) \
    for (int n = 0; n < 16; n++) { \
      int32_t sum = 0; \
      for (int k = 0; k < 32; k++) sum += (int8_t)tile_registers.of[a][m * 32 + k] * tile_registers.of[b][k / 4 * 64 + n * 4 + k % 4]; \
      (to)[m * 16 + n] = sum; \
    }

#else

#define VECTOR_MULTIPLY multiply_avx512

/** Layout of a tile configuration (palette 1), Intel SDM, LDTILECFG. */
typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} __attribute__((packed, aligned(64))) TileConfig;

/** Tiles 0 to 3: 16 x 16 sums; 4 and 5: 16 rows of 32 inputs; 6 and 7: 8 quads of inputs of 16 outputs. */
static const TileConfig config = {.palette = 1, .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}};

#define TILE_STATE
#define TILE_CONFIGURE() _tile_loadconfig(&config)
#define TILE_RELEASE() _tile_release()
#define LOAD_ROWS(t, from, stride) _tile_loadd(t, from, stride)
#define LOAD_WEIGHTS(t, from, stride) _tile_loadd(t, from, stride)
#define MULTIPLY(c, a, b, to) _tile_zero(c); _tile_dpbsud(c, a, b); _tile_stored(c, to, 64)

#endif

void VECTOR_MULTIPLY(uint8_t *memory, uint32_t at, uint32_t quantised, uint32_t first, uint32_t rows, uint32_t panel, uint32_t panel_end);

/** A group of a tile's panels, unpacked: quads of its outputs side by side, their scales, and their zeros for uint4. */
typedef struct {
  uint8_t quads[8][4 * TILE_OUTPUTS];
  float scales[TILE_OUTPUTS], zeros[TILE_OUTPUTS];
} __attribute__((aligned(64))) Unpacked;

INLINE void unpack(const uint32_t format, const uint8_t *const *w, size_t at, uint32_t count, Unpacked *to) {
  for (; count > 0; count--, to++, at += group_bytes(format)) {
    for (int v = 0; v < VECTORS; v++) {
      const uint8_t *const *panels = w + v * VECTOR_PANELS;
      UNROLL
      for (int k = 0; k < 8; k++) store_bytes(to->quads[k] + 4 * LANES * v, load_weights(format, panels, at, k));
      store_floats(to->scales + LANES * v, load_scales(format, panels, at));
      if (format == UINT4) store_floats(to->zeros + LANES * v, load_halves(panels, at + 16));
    }
  }
}

static void unpack_format(uint32_t format, const uint8_t *const *w, size_t at, uint32_t count, Unpacked *to) {
  if (format == INT8) unpack(INT8, w, at, count, to);
  else if (format == INT4) unpack(INT4, w, at, count, to);
  else if (format == UINT4) unpack(UINT4, w, at, count, to);
  else if (format == MXFP4) unpack(MXFP4, w, at, count, to);
  else unpack(IQ4, w, at, count, to);
}

/** Adds a group's sums of integers [16][16], less their rows' corrections, to sums of floats that are TILE_OUTPUTS apart. */
INLINE void add_sums(const int has_zeros, const int32_t *dots, const int8_t *q, size_t q_stride, floats scales, floats zeros, float *sums) {
  for (int r = 0; r < TILE_ROWS; r++, q += q_stride) {
    const ints whole = add_ints(load_bytes((const uint8_t *)(dots + r * 16)), splat_int(((const int32_t *)q)[1]));
    add_group(has_zeros, sums + r * TILE_OUTPUTS, whole, scales, zeros, q);
  }
}

/** sums[16 · blocks][TILE_OUTPUTS] += q · w for `count` unpacked groups; `blocks` is one or two, `has_zeros` a constant. */
INLINE void multiply_blocks(const int blocks, const int has_zeros, const int8_t *q, size_t q_stride, const Unpacked *w, uint32_t count, float *sums) {
  int32_t dots[4][256] __attribute__((aligned(64)));
  TILE_STATE;
  for (; count > 0; count--, q += Q_GROUP, w++) {
    // Loads of tiles do not tell the compiler that they read memory.
    LEAVE_IN_MEMORY();
    LOAD_WEIGHTS(6, w->quads[0], 4 * TILE_OUTPUTS);
    LOAD_WEIGHTS(7, w->quads[0] + 64, 4 * TILE_OUTPUTS);
    LOAD_ROWS(4, q + 16, q_stride);
    MULTIPLY(0, 4, 6, dots[0]);
    MULTIPLY(1, 4, 7, dots[1]);
    if (blocks > 1) {
      LOAD_ROWS(5, q + TILE_ROWS * q_stride + 16, q_stride);
      MULTIPLY(2, 5, 6, dots[2]);
      MULTIPLY(3, 5, 7, dots[3]);
    }
    for (int v = 0; v < VECTORS; v++) {
      const floats scales = load_floats(w->scales + LANES * v), zeros = load_floats(w->zeros + LANES * v);
      for (int b = 0; b < blocks; b++)
        add_sums(has_zeros, dots[2 * b + v], q + b * TILE_ROWS * q_stride, q_stride, scales, zeros, sums + b * TILE_ROWS * TILE_OUTPUTS + v * LANES);
    }
  }
}

static void multiply_panels(const Product *p, const uint32_t *panels, uint32_t num_panels) {
  float sums[ROW_BLOCK * TILE_OUTPUTS] __attribute__((aligned(64)));
  Unpacked slice[SLICE];
  const uint32_t format = p->params->format;
  const size_t q_stride = (size_t)p->groups * Q_GROUP;
  const uint8_t *w[TILE_PANELS];
  place_panels(p, panels, num_panels, w);
  for (uint32_t i = 0; i < p->rows * TILE_OUTPUTS; i++) sums[i] = 0;
  for (uint32_t from = 0; from < p->groups; from += SLICE) {
    const uint32_t count = p->groups - from < SLICE ? p->groups - from : SLICE;
    unpack_format(format, w, from * group_bytes(format), count, slice);
    for (uint32_t row = 0; row < p->rows; row += 2 * TILE_ROWS) {
      const int8_t *q = p->q + row * q_stride + (size_t)from * Q_GROUP;
      float *to = sums + row * TILE_OUTPUTS;
      const int blocks = p->rows - row > TILE_ROWS ? 2 : 1;
      if (format == UINT4) multiply_blocks(blocks, 1, q, q_stride, slice, count, to);
      else multiply_blocks(blocks, 0, q, q_stride, slice, count, to);
    }
  }
  finish_tile(p, panels, num_panels, sums);
}

/** Computes the outputs of rows [first, first + rows) and panels [panel, panel_end); `quantised` has the rows. */
EXPORT void NAME(multiply)(uint8_t *memory, uint32_t at, uint32_t quantised, uint32_t first, uint32_t rows, uint32_t panel, uint32_t panel_end) {
  const uint32_t whole = rows / TILE_ROWS * TILE_ROWS;
  const Product p = product_of(memory, at, quantised, first, whole);
  if (rows > whole) VECTOR_MULTIPLY(memory, at, quantised + whole * p.groups * Q_GROUP, first + whole, rows - whole, panel, panel_end);
  if (whole == 0) return;
  TILE_CONFIGURE();
  for (; panel < panel_end; panel += TILE_PANELS) {
    uint32_t panels[TILE_PANELS];
    for (uint32_t k = 0; k < TILE_PANELS; k++) panels[k] = panel + k;
    multiply_panels(&p, panels, panel_end - panel < TILE_PANELS ? panel_end - panel : TILE_PANELS);
  }
  TILE_RELEASE();
}
