/**
 * Vectors of f32 for the native kernels: the widest that the instruction set has, with one name per operation.
 *
 *   PENSTOCK_ISA   avx512: 16 lanes; avx2: 8 lanes; plain: 4 lanes in C alone, for any CPU
 *
 * The functions follow kernels/wasm/as/simd.as.ts lane by lane, so a lane has the same bits at any width (E2). Multiply-adds that are
 * fused there are fused here; the build has -ffp-contract=off, so that no other is.
 */
#ifndef PENSTOCK_ATTENTION_LANES_H
#define PENSTOCK_ATTENTION_LANES_H

#include "native.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
/** Vectors of four f32 that lie side by side in a vector. */
#define FOURS (LANES / 4)

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef vec vec_in_memory __attribute__((aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16)));
typedef vec4 vec4_in_memory __attribute__((aligned(4), may_alias));
typedef int64_t long_in_memory __attribute__((aligned(2), may_alias));
typedef int32_t ints4 __attribute__((vector_size(16)));

/** Four of the eight values of two vectors of four. gcc has clang's form from version 12 on. */
#if defined(__clang__)
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (ints4){i, j, k, l})
#endif

INLINE vec load(const float *at) { return *(const vec_in_memory *)at; }
INLINE void store(float *at, vec v) { *(vec_in_memory *)at = v; }
INLINE vec4 load4(const float *at) { return *(const vec4_in_memory *)at; }
INLINE void store4(float *at, vec4 v) { *(vec4_in_memory *)at = v; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE ints splat_int(uint32_t x) { return (int32_t)x + (ints){0}; }

/** Returns b where a < b, else a: a NaN in b is left out. */
INLINE vec4 max4(vec4 a, vec4 b) {
  const ints4 is_less = a < b;
  return (vec4)((is_less & (ints4)b) | (~is_less & (ints4)a));
}

/** Returns the f32 of an f16 that is neither infinite nor a NaN; stores of KV saturate. */
INLINE float half_to_float(uint16_t half) {
  const union { uint32_t bits; float value; } small = {(uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13};
  return small.value * 0x1p112f;
}

/** Returns the nearest f16 of a value of magnitude 65504 at most, ties to even, as to_f16 in simd.as.ts. */
INLINE uint16_t float_to_half(float v) {
  const union { float value; uint32_t bits; } whole = {v}, magnitude = {__builtin_fabsf(v)}, aligned = {magnitude.value + 0.5f};
  const uint32_t sign = whole.bits >> 16 & 0x8000, rounded = magnitude.bits + 0xfff + (magnitude.bits >> 13 & 1);
  // Below 2^-14, adding 0.5 rounds to a multiple of 2^-24.
  if (magnitude.bits < 0x38800000) return (uint16_t)(sign | (aligned.bits - 0x3f000000));
  return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

#if LANES == 16
typedef __mmask16 mask;
/** Returns a · b + c, rounded once. */
INLINE vec madd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/** Returns b where a < b, else a. */
INLINE vec max_of(vec a, vec b) { return _mm512_max_ps(b, a); }
/** Returns b where b < a, else a. */
INLINE vec min_of(vec a, vec b) { return _mm512_min_ps(b, a); }
/** Returns a mask of the lanes where a < b is false, as it is for a NaN. */
INLINE mask is_not_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
/** Returns a mask of the lanes whose token is in [start, end). */
INLINE mask is_seen(ints token, ints start, ints end) {
  return _mm512_cmp_epi32_mask((__m512i)token, (__m512i)end, _MM_CMPINT_LT) &
         _mm512_cmp_epi32_mask((__m512i)token, (__m512i)start, _MM_CMPINT_NLT);
}
INLINE int is_any_not_one(vec v) { return _mm512_cmp_ps_mask(v, splat(1), _CMP_NEQ_UQ) != 0; }
/** Returns v · 2^n, a normal number; `power` is 2^n. */
INLINE vec times_power_of_2(vec v, vec n, vec power) { return (void)power, _mm512_scalef_ps(v, n); }
INLINE vec choose(mask m, vec a, vec b) { return _mm512_mask_mov_ps(b, m, a); }
INLINE vec zero_unless(mask m, vec a) { return _mm512_maskz_mov_ps(m, a); }
INLINE vec repeat4(vec4 v) { return _mm512_broadcast_f32x4(v); }
/** The interleaved low or high halves of every four lanes: of single values, of pairs. */
INLINE vec low_values(vec a, vec b) { return _mm512_unpacklo_ps(a, b); }
INLINE vec high_values(vec a, vec b) { return _mm512_unpackhi_ps(a, b); }
INLINE vec low_pairs(vec a, vec b) { return (vec)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
INLINE vec high_pairs(vec a, vec b) { return (vec)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
INLINE vec load_halves(const uint16_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }
/** Stores values of magnitude 65504 at most as f16. */
INLINE void convert_halves(uint16_t *at, vec v) {
  _mm256_storeu_si256((__m256i *)at, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/** The first `count` lanes, a multiple of 4; nothing after them is read or written. */
INLINE vec load_first(const float *at, uint32_t count) { return _mm512_maskz_loadu_ps((1u << count) - 1, at); }
INLINE void store_first(float *at, vec v, uint32_t count) { _mm512_mask_storeu_ps(at, (1u << count) - 1, v); }
INLINE vec load_first_halves(const uint16_t *at, uint32_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((1u << count) - 1, at));
}
/** Returns four values of each of FOURS tokens, `bytes` apart. */
INLINE vec load_tokens(const uint8_t *at, size_t bytes, int is_f16) {
  if (is_f16) {
    const __m128i low = _mm_set_epi64x(*(const long_in_memory *)(at + bytes), *(const long_in_memory *)at);
    const __m128i high = _mm_set_epi64x(*(const long_in_memory *)(at + 3 * bytes), *(const long_in_memory *)(at + 2 * bytes));
    return _mm512_cvtph_ps(_mm256_set_m128i(high, low));
  }
  const __m256 low = _mm256_set_m128(load4((const float *)(at + bytes)), load4((const float *)at));
  const __m256 high = _mm256_set_m128(load4((const float *)(at + 3 * bytes)), load4((const float *)(at + 2 * bytes)));
  return (vec)_mm512_insertf64x4((__m512d)_mm512_castps256_ps512(low), (__m256d)high, 1);
}
/** Sets to[i] to values 4i to 4i + 3 of each of FOURS tokens of f16. */
INLINE void load_tokens_wide(const uint8_t *at, size_t bytes, vec to[FOURS]) {
  const __m256i a = _mm256_loadu_si256((const __m256i *)at), b = _mm256_loadu_si256((const __m256i *)(at + bytes));
  const __m256i c = _mm256_loadu_si256((const __m256i *)(at + 2 * bytes)), d = _mm256_loadu_si256((const __m256i *)(at + 3 * bytes));
  const __m256i ab0 = _mm256_unpacklo_epi64(a, b), ab1 = _mm256_unpackhi_epi64(a, b);
  const __m256i cd0 = _mm256_unpacklo_epi64(c, d), cd1 = _mm256_unpackhi_epi64(c, d);
  to[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab0, cd0, 0x20));
  to[1] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab1, cd1, 0x20));
  to[2] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab0, cd0, 0x31));
  to[3] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab1, cd1, 0x31));
}
#else
typedef ints mask;
INLINE mask is_not_less(vec a, vec b) { return ~(a < b); }
INLINE mask is_seen(ints token, ints start, ints end) { return (end > token) & ~(start > token); }
INLINE int is_any_not_one(vec v) {
  int any = 0;
  for (int lane = 0; lane < LANES; lane++) any |= v[lane] != 1;
  return any;
}
INLINE vec times_power_of_2(vec v, vec n, vec power) { return (void)n, v * power; }
INLINE vec choose(mask m, vec a, vec b) { return (vec)((m & (ints)a) | (~m & (ints)b)); }
INLINE vec zero_unless(mask m, vec a) { return (vec)(m & (ints)a); }
#endif

#if LANES == 8
INLINE vec madd(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec max_of(vec a, vec b) { return _mm256_max_ps(b, a); }
INLINE vec min_of(vec a, vec b) { return _mm256_min_ps(b, a); }
INLINE vec repeat4(vec4 v) { return _mm256_set_m128(v, v); }
INLINE vec low_values(vec a, vec b) { return _mm256_unpacklo_ps(a, b); }
INLINE vec high_values(vec a, vec b) { return _mm256_unpackhi_ps(a, b); }
INLINE vec low_pairs(vec a, vec b) { return (vec)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
INLINE vec high_pairs(vec a, vec b) { return (vec)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
INLINE vec load_halves(const uint16_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }
INLINE void convert_halves(uint16_t *at, vec v) {
  _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE vec load_first(const float *at, uint32_t count) { return count == 8 ? load(at) : (vec)_mm256_zextps128_ps256(load4(at)); }
INLINE void store_first(float *at, vec v, uint32_t count) {
  if (count == 8) store(at, v);
  else store4(at, _mm256_castps256_ps128(v));
}
INLINE vec load_first_halves(const uint16_t *at, uint32_t count) {
  return count == 8 ? load_halves(at) : (vec)_mm256_cvtph_ps(_mm_loadl_epi64((const __m128i *)at));
}
INLINE vec load_tokens(const uint8_t *at, size_t bytes, int is_f16) {
  if (is_f16) return _mm256_cvtph_ps(_mm_set_epi64x(*(const long_in_memory *)(at + bytes), *(const long_in_memory *)at));
  return _mm256_set_m128(load4((const float *)(at + bytes)), load4((const float *)at));
}
INLINE void load_tokens_wide(const uint8_t *at, size_t bytes, vec to[FOURS]) {
  const __m128i a = _mm_loadu_si128((const __m128i *)at), b = _mm_loadu_si128((const __m128i *)(at + bytes));
  to[0] = _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
  to[1] = _mm256_cvtph_ps(_mm_unpackhi_epi64(a, b));
}
#elif LANES == 4
INLINE vec madd(vec a, vec b, vec c) {
  return (vec){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]), __builtin_fmaf(a[2], b[2], c[2]),
               __builtin_fmaf(a[3], b[3], c[3])};
}
INLINE vec max_of(vec a, vec b) { return choose(a < b, b, a); }
INLINE vec min_of(vec a, vec b) { return choose(b < a, b, a); }
INLINE vec repeat4(vec4 v) { return v; }
INLINE vec low_values(vec a, vec b) { return SHUFFLE4(a, b, 0, 4, 1, 5); }
INLINE vec high_values(vec a, vec b) { return SHUFFLE4(a, b, 2, 6, 3, 7); }
INLINE vec low_pairs(vec a, vec b) { return SHUFFLE4(a, b, 0, 1, 4, 5); }
INLINE vec high_pairs(vec a, vec b) { return SHUFFLE4(a, b, 2, 3, 6, 7); }
INLINE vec load_halves(const uint16_t *at) {
  return (vec){half_to_float(at[0]), half_to_float(at[1]), half_to_float(at[2]), half_to_float(at[3])};
}
INLINE void convert_halves(uint16_t *at, vec v) {
  for (int lane = 0; lane < LANES; lane++) at[lane] = float_to_half(v[lane]);
}
INLINE vec load_first(const float *at, uint32_t count) { return (void)count, load(at); }
INLINE void store_first(float *at, vec v, uint32_t count) { (void)count, store(at, v); }
INLINE vec load_first_halves(const uint16_t *at, uint32_t count) { return (void)count, load_halves(at); }
INLINE vec load_tokens(const uint8_t *at, size_t bytes, int is_f16) {
  return (void)bytes, is_f16 ? load_halves((const uint16_t *)at) : load((const float *)at);
}
INLINE void load_tokens_wide(const uint8_t *at, size_t bytes, vec to[FOURS]) { to[0] = load_tokens(at, bytes, 1); }
#endif

/** Stores the nearest f16, ties to even, saturating; a NaN becomes the largest. */
INLINE void store_halves(uint16_t *at, vec v) {
  const words sign = (words)v & 0x80000000u;
  const vec magnitude = min_of(splat(65504.0f), (vec)((words)v & 0x7fffffffu));
  convert_halves(at, (vec)((words)magnitude | sign));
}

/** Returns in every four lanes [sum of a, sum of b, sum of c, sum of d], each added as (0 + 1) + (2 + 3). */
INLINE vec sums_of_4(vec a, vec b, vec c, vec d) {
  const vec ab01 = low_values(a, b), ab23 = high_values(a, b), cd01 = low_values(c, d), cd23 = high_values(c, d);
  return (low_pairs(ab01, cd01) + high_pairs(ab01, cd01)) + (low_pairs(ab23, cd23) + high_pairs(ab23, cd23));
}

/**
 * Returns e^x for x <= 88 with the bits of exp4 in simd.as.ts, which documents method and error; 0 below -87, NaN of a NaN. The
 * product of n and 0.693359375, 9 bits long, is exact, so that the first reduction has the same bits fused. Below -87 the lanes hold
 * anything until the end.
 */
INLINE vec exp_below_88(vec x) {
  const mask is_large = is_not_less(x, splat(-87.0f));
  const vec shifted = x * 1.44269504088896341f + 12582912.0f;
  const vec n = shifted - 12582912.0f;
  vec r = madd(n, splat(-0.693359375f), x);
  r = r - n * -2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  p = madd(p, r, splat(1.3981999507e-3f));
  p = madd(p, r, splat(8.3334519073e-3f));
  p = madd(p, r, splat(4.1665795894e-2f));
  p = madd(p, r, splat(1.6666665459e-1f));
  p = madd(p, r, splat(5.0000001201e-1f));
  p = madd(p, r * r, r + 1.0f);
  return zero_unless(is_large, times_power_of_2(p, n, (vec)(((words)shifted + 127) << 23)));
}

/** Returns e^x with the bits of exp4 for any x. */
INLINE vec exp_of(vec x) { return exp_below_88(min_of(x, splat(88.0f))); }

#endif
