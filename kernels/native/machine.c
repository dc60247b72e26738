/** What this CPU and this system have, and the two functions of a C library that compilers call by themselves. */
#include <cpuid.h>

#include "native.h"

/** Bits of `machine_features`. */
enum { HAS_AVX2 = 1, HAS_AVX_VNNI = 2, HAS_AVX512_VNNI = 4, HAS_AMX_INT8 = 8 };

/** State components of XCR0 that the system saves: SSE and AVX; with them the three of AVX-512; the two of AMX. */
enum { AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000 };

static uint64_t saved_states(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static int has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

/** Returns the instruction sets that the CPU has and the system saves the registers of, as HAS_... bits. */
EXPORT uint32_t machine_features(void) {
  uint32_t a, b, c, d, b7, c7, d7, features = 0;
  // OSXSAVE, AVX, FMA, F16C.
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !has(c, 1u << 27 | 1u << 28 | 1u << 12 | 1u << 29)) return 0;
  uint64_t states = saved_states();
  if ((states & AVX_STATE) != AVX_STATE || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !has(b7, 1u << 5)) return 0;
  features |= HAS_AVX2;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 1u << 4)) features |= HAS_AVX_VNNI;
  // AVX-512 F, DQ, BW, VL, and its VNNI.
  if ((states & AVX512_STATE) != AVX512_STATE || !has(b7, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) || !has(c7, 1u << 11)) return features;
  features |= HAS_AVX512_VNNI;
  // AMX tiles and their products of bytes.
  if ((states & AMX_STATE) == AMX_STATE && has(d7, 1u << 24 | 1u << 25)) features |= HAS_AMX_INT8;
  return features;
}

/** Asks Linux for the tile registers of AMX, for all threads of this process. Returns 0, or a negative error number. */
EXPORT int amx_permission(void) {
  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "0"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return (int)result;
}

void *memset(void *to, int value, size_t count) {
  uint8_t *p = to;
  // Compilers make a call of memset of a plain loop.
  for (size_t i = 0; i < count; i++) ((volatile uint8_t *)p)[i] = (uint8_t)value;
  return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  for (size_t i = 0; i < count; i++) ((volatile uint8_t *)to)[i] = ((const uint8_t *)from)[i];
  return to;
}
