/**
 * Native kernels: the products of kernels/wasm with the same bits, in wider instructions. Called by the threads of a step on their own shared
 * memory, as the WebAssembly kernels are: addresses are byte offsets in `memory`, ranges are half-open, and structs are those of kernels/wasm.
 *
 * Each source is compiled once for every instruction set that it has a form for, with PENSTOCK_ISA as the ending of its functions' names.
 * Nothing of a C library is used, so that what one system compiles loads on an older one. Sums are not reassociated and contraction is off:
 * the order of all operations in f32 is that of the WebAssembly kernels (E2).
 */
#ifndef PENSTOCK_NATIVE_H
#define PENSTOCK_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#if defined(__AVX2__)
/** Leaves mm_malloc.h out of gcc's intrinsics: it includes stdlib.h, of a libc that these kernels do without. */
#define _MM_MALLOC_H_INCLUDED
#include <immintrin.h>
#endif

#define JOIN_NAMES(name, isa) name##_##isa
#define NAME_FOR(name, isa) JOIN_NAMES(name, isa)
/** The name of a function of this source in the instruction set that it is compiled for. */
#define NAME(name) NAME_FOR(name, PENSTOCK_ISA)
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/**
 * NOINLINE functions are not compiled again for constant arguments either, which costs compile time and gains nothing. UNROLL unrolls the loop
 * that follows, whose bounds are constants, so that what it fills stays in registers; the plain form needs no speed.
 */
#if defined(__clang__)
#define NOINLINE static __attribute__((noinline))
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define NOINLINE static __attribute__((noinline, noclone))
#define UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(ISA_PLAIN)
#undef UNROLL
#define UNROLL
#endif

/**
 * Prefetches a cache line into the second-level cache. Into the first level, a core has room for two dozen lines on their way, and a
 * burst of prefetches holds up the loads after it: decode read 6 GB/s of KV from DRAM, with this 13.
 */
#define PREFETCH(at) __builtin_prefetch(at, 0, 2)
/** Keeps the compiler from holding sums of floats in registers from one group to the next: they would push out the sums of integers. */
#define LEAVE_IN_MEMORY() __asm__ volatile("" ::: "memory")

/** Codes of weight formats, those of kernels/wasm/panels.ts. */
enum { F32, F16, INT8, INT4, UINT4, MXFP4, IQ4 };

/** Most rows of a call, ROW_BLOCK in kernels/wasm/as/panels.as.ts. */
enum { ROW_BLOCK = 96 };

/** Bytes of a row's group: a scale f32, the correction i32, the sum of the integers f32, 4 unused bytes, then 32 bytes. */
#define Q_GROUP 48

/** Parameters of a product, LinearParams in kernels/wasm/as/panels.as.ts: strides are bytes, a bias of 0 is none. */
typedef struct {
  uint32_t x, x_stride, weight, format, bias, out, out_stride, inner, is_accumulating;
  float scale;
} LinearParams;

#endif
