/**
 * Vectors of LANES values, f32 or i32: the few operations that products need, for each instruction set. A product's panel has eight outputs,
 * so a vector holds one panel or, with sixteen lanes, two.
 *
 *   avx2     8 lanes; exact dot products of bytes by magnitudes and signs
 *   vnni256  8 lanes; a dot product of bytes is one instruction (AVX-VNNI)
 *   avx512   16 lanes; the same in AVX-512 VNNI
 *   plain    16 lanes in C alone, for tests on any machine
 */
#ifndef PENSTOCK_VECTORS_H
#define PENSTOCK_VECTORS_H

#include "native.h"

#if defined(ISA_PLAIN)

#define LANES 16
typedef struct { float v[LANES]; } floats;
typedef union { int32_t v[LANES]; uint8_t b[4 * LANES]; } ints;
#define EACH for (int i = 0; i < LANES; i++)

INLINE floats splat_float(float x) { floats y; EACH y.v[i] = x; return y; }
INLINE floats load_floats(const float *p) { floats y; EACH y.v[i] = p[i]; return y; }
INLINE void store_floats(float *p, floats x) { EACH p[i] = x.v[i]; }
INLINE floats add(floats a, floats b) { EACH a.v[i] += b.v[i]; return a; }
INLINE floats subtract(floats a, floats b) { EACH a.v[i] -= b.v[i]; return a; }
INLINE floats multiply(floats a, floats b) { EACH a.v[i] *= b.v[i]; return a; }
INLINE floats multiply_add(floats a, floats b, floats c) { EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
INLINE floats to_floats(ints x) { floats y; EACH y.v[i] = (float)x.v[i]; return y; }
INLINE ints splat_int(int32_t x) { ints y; EACH y.v[i] = x; return y; }
INLINE ints add_ints(ints a, ints b) { EACH a.v[i] += b.v[i]; return a; }
INLINE ints load_bytes(const uint8_t *p) { ints y; for (int i = 0; i < 4 * LANES; i++) y.b[i] = p[i]; return y; }
INLINE void store_bytes(uint8_t *p, ints x) { for (int i = 0; i < 4 * LANES; i++) p[i] = x.b[i]; }
INLINE ints load_panels(const uint8_t *const *w, size_t at) { ints y; for (int i = 0; i < 4 * LANES; i++) y.b[i] = w[i / 32][at + i % 32]; return y; }
INLINE ints low_codes(ints x) { for (int i = 0; i < 4 * LANES; i++) x.b[i] &= 15; return x; }
INLINE ints high_codes(ints x) { for (int i = 0; i < 4 * LANES; i++) x.b[i] >>= 4; return x; }
INLINE ints entries(const uint8_t *table, ints codes) { for (int i = 0; i < 4 * LANES; i++) codes.b[i] = table[codes.b[i]]; return codes; }
INLINE ints dot(ints sum, ints w, ints x) { EACH for (int k = 0; k < 4; k++) sum.v[i] += w.b[4 * i + k] * (int8_t)x.b[4 * i + k]; return sum; }
INLINE float float_of_half(uint16_t h) {
  union { uint32_t u; float f; } y = {(uint32_t)(h & 0x7fff) << 13};
  y.f *= 0x1p112f;
  y.u |= (uint32_t)(h & 0x8000) << 16;
  return y.f;
}
INLINE floats load_halves(const uint8_t *const *w, size_t at) { floats y; EACH y.v[i] = float_of_half(((const uint16_t *)(w[i / 8] + at))[i % 8]); return y; }
INLINE floats load_exponents(const uint8_t *const *w, size_t at) { floats y; EACH { union { uint32_t u; float f; } z = {(uint32_t)w[i / 8][at + i % 8] << 23}; y.v[i] = z.f; } return y; }
INLINE floats load_wide(const uint8_t *const *w, size_t at) { floats y; EACH y.v[i] = ((const float *)(w[i / 8] + at))[i % 8]; return y; }
typedef struct { float v[8]; } eight;
INLINE eight eight_zeros(void) { return (eight){{0}}; }
INLINE eight load_eight(const int is_f16, const uint8_t *p) {
  eight y;
  for (int i = 0; i < 8; i++) y.v[i] = is_f16 ? float_of_half(((const uint16_t *)p)[i]) : ((const float *)p)[i];
  return y;
}
INLINE eight add_eight(float x, eight w, eight sum) { for (int i = 0; i < 8; i++) sum.v[i] = __builtin_fmaf(x, w.v[i], sum.v[i]); return sum; }
INLINE void store_eight(float *p, eight x) { for (int i = 0; i < 8; i++) p[i] = x.v[i]; }
INLINE ints magnitude_bits(floats x) { union { floats f; ints i; } y = {x}; EACH y.i.v[i] &= 0x7fffffff; return y.i; }
INLINE ints larger_bits(ints a, ints b) { EACH if (b.v[i] > a.v[i]) a.v[i] = b.v[i]; return a; }
INLINE int32_t largest_bits(ints x) { int32_t y = 0; EACH if (x.v[i] > y) y = x.v[i]; return y; }
INLINE ints nearest(floats x) { ints y; EACH y.v[i] = (int32_t)__builtin_rintf(x.v[i]); return y; }
INLINE int32_t sum_of(ints x) { int32_t y = 0; EACH y += x.v[i]; return y; }
INLINE void store_low_bytes(int8_t *p, ints x) { EACH p[i] = (int8_t)x.v[i]; }
#undef EACH

#elif defined(__AVX512F__)

#define LANES 16
typedef __m512 floats;
typedef __m512i ints;

INLINE floats splat_float(float x) { return _mm512_set1_ps(x); }
INLINE floats load_floats(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store_floats(float *p, floats x) { _mm512_storeu_ps(p, x); }
INLINE floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
INLINE floats subtract(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats multiply(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats multiply_add(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE floats to_floats(ints x) { return _mm512_cvtepi32_ps(x); }
INLINE ints splat_int(int32_t x) { return _mm512_set1_epi32(x); }
INLINE ints add_ints(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE void store_bytes(uint8_t *p, ints x) { _mm512_storeu_si512(p, x); }
INLINE ints load_panels(const uint8_t *const *w, size_t at) {
  ints first = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(w[0] + at)));
  return _mm512_inserti64x4(first, _mm256_loadu_si256((const __m256i *)(w[1] + at)), 1);
}
INLINE ints low_codes(ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
INLINE ints high_codes(ints x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
INLINE ints entries(const uint8_t *table, ints codes) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), codes); }
#ifdef __AVX512VNNI__
INLINE ints dot(ints sum, ints w, ints x) { return _mm512_dpbusd_epi32(sum, w, x); }
#endif
INLINE floats load_halves(const uint8_t *const *w, size_t at) {
  __m256i first = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(w[0] + at)));
  return _mm512_cvtph_ps(_mm256_inserti128_si256(first, _mm_loadu_si128((const __m128i *)(w[1] + at)), 1));
}
INLINE floats load_exponents(const uint8_t *const *w, size_t at) {
  __m128i bytes = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(w[0] + at)), _mm_loadl_epi64((const __m128i *)(w[1] + at)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
}
INLINE floats load_wide(const uint8_t *const *w, size_t at) { return _mm512_castsi512_ps(load_panels(w, at)); }
INLINE ints magnitude_bits(floats x) { return _mm512_castps_si512(_mm512_abs_ps(x)); }
INLINE ints larger_bits(ints a, ints b) { return _mm512_max_epi32(a, b); }
INLINE int32_t largest_bits(ints x) { return _mm512_reduce_max_epi32(x); }
INLINE ints nearest(floats x) { return _mm512_cvtps_epi32(x); }
INLINE int32_t sum_of(ints x) { return _mm512_reduce_add_epi32(x); }
INLINE void store_low_bytes(int8_t *p, ints x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x)); }

#else

#define LANES 8
typedef __m256 floats;
typedef __m256i ints;

INLINE floats splat_float(float x) { return _mm256_set1_ps(x); }
INLINE floats load_floats(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store_floats(float *p, floats x) { _mm256_storeu_ps(p, x); }
INLINE floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
INLINE floats subtract(floats a, floats b) { return _mm256_sub_ps(a, b); }
INLINE floats multiply(floats a, floats b) { return _mm256_mul_ps(a, b); }
INLINE floats multiply_add(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE floats to_floats(ints x) { return _mm256_cvtepi32_ps(x); }
INLINE ints splat_int(int32_t x) { return _mm256_set1_epi32(x); }
INLINE ints add_ints(ints a, ints b) { return _mm256_add_epi32(a, b); }
INLINE ints load_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void store_bytes(uint8_t *p, ints x) { _mm256_storeu_si256((__m256i *)p, x); }
INLINE ints load_panels(const uint8_t *const *w, size_t at) { return load_bytes(w[0] + at); }
INLINE ints low_codes(ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE ints high_codes(ints x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }
INLINE ints entries(const uint8_t *table, ints codes) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), codes); }
#ifdef __AVXVNNI__
INLINE ints dot(ints sum, ints w, ints x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
#else
#define DOT_IS_SIGNED
/**
 * Bytes of weights are signed here. Sums of two products stay within 16 bits, since a magnitude of 128 meets at most 127: 2 · 128 · 127 is
 * 32,512.
 */
INLINE ints dot(ints sum, ints w, ints x) {
  ints pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
INLINE floats load_halves(const uint8_t *const *w, size_t at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(w[0] + at))); }
INLINE floats load_exponents(const uint8_t *const *w, size_t at) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(w[0] + at))), 23));
}
INLINE floats load_wide(const uint8_t *const *w, size_t at) { return load_floats((const float *)(w[0] + at)); }
INLINE ints magnitude_bits(floats x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
INLINE ints larger_bits(ints a, ints b) { return _mm256_max_epi32(a, b); }
INLINE int32_t largest_bits(ints x) {
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_unpackhi_epi64(y, y));
  return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 1)));
}
INLINE ints nearest(floats x) { return _mm256_cvtps_epi32(x); }
INLINE int32_t sum_of(ints x) {
  __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_add_epi32(y, _mm_unpackhi_epi64(y, y));
  return _mm_cvtsi128_si32(y) + _mm_extract_epi32(y, 1);
}
INLINE void store_low_bytes(int8_t *p, ints x) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}

#endif

#if defined(__AVX2__)

/** Eight values: a panel's outputs, for rows that are multiplied one by one. */
typedef __m256 eight;
INLINE eight eight_zeros(void) { return _mm256_setzero_ps(); }
INLINE eight load_eight(const int is_f16, const uint8_t *p) { return is_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)) : _mm256_loadu_ps((const float *)p); }
INLINE eight add_eight(float x, eight w, eight sum) { return _mm256_fmadd_ps(_mm256_set1_ps(x), w, sum); }
INLINE void store_eight(float *p, eight x) { _mm256_storeu_ps(p, x); }

#endif

/** Panels of eight outputs in a vector, vectors in a tile's width, and what that makes. */
#define VECTOR_PANELS (LANES / 8)
#define VECTORS 2
#define TILE_PANELS (VECTORS * VECTOR_PANELS)
#define TILE_OUTPUTS (VECTORS * LANES)
/** Stores a row's sums of a panel's eight outputs: finish8 of kernels/wasm/as/panels.as.ts. */
INLINE void finish(const uint8_t *memory, const LinearParams *params, float *to, const float *sums, uint32_t panel) {
  float y[8];
  for (int i = 0; i < 8; i++) y[i] = sums[i];
  if (params->bias) {
    const float *bias = (const float *)(memory + params->bias) + (size_t)panel * 8;
    for (int i = 0; i < 8; i++) y[i] += bias[i];
  }
  for (int i = 0; i < 8; i++) y[i] *= params->scale;
  if (params->is_accumulating)
    for (int i = 0; i < 8; i++) y[i] += to[i];
  for (int i = 0; i < 8; i++) to[i] = y[i];
}

#endif
