/** Instructions with which products of integers are computed; all give the same bits (kernels/wasm/products.ts). */

/** Products of i16 pairs, in every runtime with SIMD. */
export const PLAIN: u32 = 0;
/** Products of i8 by seven bits added to i16, for formats of four bits; needs relaxed SIMD. */
export const RELAXED: u32 = 1;
