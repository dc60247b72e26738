/** Numbers that the compiled kernels have built in and that their callers count on: a test compares the two. */

/** Most rows of a product's call. */
export const ROW_BLOCK = 96;
/** Tokens of an attention span, in whole blocks, at least one. */
export const SPAN = 128;
/** Bytes of 32 inputs of a panel: eight scales f16, of uint4 eight zeros f16, then the integers. */
export const INT8_GROUP = 272;
/** Bytes of 32 inputs of an int4 panel: eight scales f16, then 256 nibbles. */
export const INT4_GROUP = 144;
/** Bytes of 32 inputs of a uint4 panel: eight scales f16, eight zeros f16, then 256 nibbles. */
export const UINT4_GROUP = 160;
/** Bytes of 32 quantised inputs of a row. */
export const Q_GROUP_BYTES = 80;
/** Most inputs of a slice of unpacked f16 weights, and groups of one of int4 weights. */
export const SLICE = 320;
/** Most groups of 32 inputs of a slice of int4 or uint4 weights unpacked to bytes. */
export const SLICE_GROUPS = 16;
