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

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
/** Unrolls the loop that follows, whose bounds are constants, so that what it fills stays in registers. */
#ifdef ISA_PLAIN
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/** Keeps the compiler from holding sums of floats in registers from one group to the next: they would push out the sums of integers. */
#define LEAVE_IN_MEMORY() __asm__ volatile("" ::: "memory")
#define JOIN_NAMES(name, isa) name##_##isa
#define NAME_FOR(name, isa) JOIN_NAMES(name, isa)
/** The name of a function of this source in the instruction set that it is compiled for. */
#define NAME(name) NAME_FOR(name, PENSTOCK_ISA)

/** Codes of weight formats, those of kernels/wasm/panels.ts. */
enum { F32, F16, INT8, INT4, UINT4, MXFP4, IQ4 };

/** Most rows of a call, ROW_BLOCK in kernels/wasm/as/panels.as.ts. */
enum { ROW_BLOCK = 96 };

/** Parameters of a product, LinearParams in kernels/wasm/as/panels.as.ts: strides are bytes, a bias of 0 is none. */
typedef struct {
  uint32_t x, x_stride, weight, format, bias, out, out_stride, inner, is_accumulating;
  float scale;
} LinearParams;

#endif
