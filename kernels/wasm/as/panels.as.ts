/**
 * Definitions shared by the products of every format: storage formats, sizes of panels, blocks of rows, and how the sums of a panel
 * are stored.
 */

/** Code of f32 weights. The codes are those of `formatCodes` in panels.ts. */
export const F32: u32 = 0;
/** Code of f16 weights. */
export const F16: u32 = 1;
/** Code of int8 weights: bytes hold the integer plus 128; a scale per group of 32 inputs. */
export const INT8: u32 = 2;
/** Code of int4 weights: nibbles hold the integer plus 8; a scale per group of 32 inputs. */
export const INT4: u32 = 3;
/** Code of uint4 weights: nibbles 0 to 15 with a scale and a zero per group of 32 inputs. */
export const UINT4: u32 = 4;
/** Code of mxfp4 weights: nibbles are codes of a table; a power of two per group of 32 inputs, as a byte. */
export const MXFP4: u32 = 5;
/** Code of iq4 weights: nibbles are codes of a table; a scale f16 per group of 32 inputs. */
export const IQ4: u32 = 6;

/** Parameters of a product: x [rows][inner] f32, weight in panels of `format`, out [rows][outputs] f32; strides are bytes. */
// @ts-ignore: decorator
@unmanaged
export class LinearParams {
  x: usize;
  xStride: usize;
  weight: usize;
  format: u32;
  /** 0: none. */
  bias: usize;
  out: usize;
  outStride: usize;
  inner: u32;
  isAccumulating: u32;
  scale: f32;
}

/** Bytes of 32 inputs of an int8 panel: 8 scales f16, then 256 bytes. */
export const INT8_GROUP: usize = 272;
/** Bytes of 32 inputs of an int4 panel: 8 scales f16, then 256 nibbles. */
export const INT4_GROUP: usize = 144;
/** Bytes of 32 inputs of a uint4 panel: 8 scales f16, 8 zeros f16, then 256 nibbles. */
export const UINT4_GROUP: usize = 160;
/** Bytes of 32 inputs of an mxfp4 panel: 8 scales u8, then 256 nibbles. */
export const MXFP4_GROUP: usize = 136;
/** Bytes of 32 inputs of an iq4 panel: 8 scales f16, then 256 nibbles. */
export const IQ4_GROUP: usize = 144;

/** Returns the bytes of 32 inputs of a panel in an integer format. */
// @ts-ignore: decorator
@inline
export function panel_group(format: u32): usize {
  if (format == INT8) return INT8_GROUP;
  if (format == UINT4) return UINT4_GROUP;
  return format == MXFP4 ? MXFP4_GROUP : INT4_GROUP;
}

/** Returns the bytes from one panel to the next. */
// @ts-ignore: decorator
@inline
export function panel_bytes(format: u32, inner: u32): usize {
  if (format == F32) return (inner as usize) << 5;
  if (format == F16) return (inner as usize) << 4;
  return (((inner + 31) >> 5) as usize) * panel_group(format);
}

/** Most rows per call of a product: they stay in cache while weights stream past them. */
export const ROW_BLOCK: u32 = 96;
/** Offset in scratch of a write-only cache line, which `touch` (simd.as.ts) writes to. Sums [ROW_BLOCK][8] f32 lie before it. */
export const SINK: usize = (ROW_BLOCK as usize) << 5;
/** Offset in a product's scratch after the sums and the write-only cache line, where data of the particular product begins. */
export const AFTER_SUMS: usize = SINK + 64;
/** Up to this many rows, as in decode, weights come from memory; with more, mostly from cache. */
export const FEW_ROWS: u32 = 12;

/**
 * Stores a row's 8 sums of a panel at `to`: adds the bias, multiplies by the scale, and adds the previous output when the product
 * accumulates.
 */
// @ts-ignore: decorator
@inline
export function finish8(params: LinearParams, to: usize, sums: usize, panel: u32): void {
  const bias = params.bias;
  const scale = f32x4.splat(params.scale);
  let a = v128.load(sums),
    b = v128.load(sums, 16);
  if (bias) {
    const at = bias + ((panel as usize) << 5);
    a = f32x4.add(a, v128.load(at));
    b = f32x4.add(b, v128.load(at, 16));
  }
  a = f32x4.mul(a, scale);
  b = f32x4.mul(b, scale);
  if (params.isAccumulating) {
    a = f32x4.add(v128.load(to), a);
    b = f32x4.add(v128.load(to, 16), b);
  }
  v128.store(to, a);
  v128.store(to, b, 16);
}

/** Stores one row's sums [4][8] of the panels `panel`, `panel + apart`, and so on, like {@link finish8}. */
export function finish_four(params: LinearParams, y: usize, sums: usize, panel: u32, apart: u32): void {
  for (const end = panel + 4 * apart; panel < end; panel += apart) {
    finish8(params, y + ((panel as usize) << 5), sums, panel);
    sums += 32;
  }
}
