/** Constants of the compiled kernels that their callers rely on. A test compares them with the kernels' exports. */

/** Most rows per call of linear_float and linear_int. */
export const ROW_BLOCK = 96;
/** Tokens per attention span, rounded down to whole blocks; at least one block. */
export const SPAN = 128;
/** Bytes of 32 inputs of an int8 panel: eight scales f16, then 256 bytes. */
export const INT8_GROUP = 272;
/** Bytes of 32 inputs of an int4 panel: eight scales f16, then 256 nibbles. */
export const INT4_GROUP = 144;
/** Bytes of 32 inputs of a uint4 panel: eight scales f16, eight zeros f16, then 256 nibbles. */
export const UINT4_GROUP = 160;
/** Bytes of 32 inputs of an mxfp4 panel: eight scales u8, then 256 nibbles. */
export const MXFP4_GROUP = 136;
/** Bytes of 32 inputs of an iq4 panel: eight scales f16, then 256 nibbles. */
export const IQ4_GROUP = 144;
/** Bytes of 32 quantised inputs of a row in the form that takes most, i16. */
export const Q_GROUP_BYTES = 80;
/** Most inputs of a panel per slice of unpacked f16 weights. */
export const SLICE = 320;
/** Most groups of 32 inputs of a slice of int4 or uint4 weights unpacked to bytes. */
export const SLICE_GROUPS = 16;
/** Most channels per call of causal_conv. */
export const CONV_CHANNELS = 256;
/** Columns of a head's state per call of delta_rule. */
export const STATE_COLUMNS = 32;
