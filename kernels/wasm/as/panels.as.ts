/** What products of every format share: how panels end, and how many rows are worked on at a time. */

/** Formats of weights. */
export const F32: u32 = 0;
export const F16: u32 = 1;
export const INT8: u32 = 2;
export const INT4: u32 = 3;
export const UINT4: u32 = 4;

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

/** Bytes of 32 inputs of a panel: 8 scales f16, of uint4 8 zeros f16, then the integers. */
export const INT8_GROUP: usize = 272;
export const INT4_GROUP: usize = 144;
export const UINT4_GROUP: usize = 160;

// @ts-ignore: decorator
@inline
export function panel_group(format: u32): usize {
  if (format == INT8) return INT8_GROUP;
  return format == INT4 ? INT4_GROUP : UINT4_GROUP;
}

/** From one panel to the next. */
// @ts-ignore: decorator
@inline
export function panel_bytes(format: u32, inner: u32): usize {
  if (format == F32) return (inner as usize) << 5;
  if (format == F16) return (inner as usize) << 4;
  return (((inner + 31) >> 5) as usize) * panel_group(format);
}

/** Most rows of a call: they are kept in cache while weights stream past them. */
export const ROW_BLOCK: u32 = 96;
/** Scratch: sums [ROW_BLOCK][8] f32, a cache line that nobody reads, then what the product needs. */
export const SINK: usize = (ROW_BLOCK as usize) << 5;
export const AFTER_SUMS: usize = SINK + 64;
/** Up to this many rows, as in decode, weights come from memory; with more, mostly from cache. */
export const FEW_ROWS: u32 = 12;

/** A panel's 8 sums of a row to its place, with the bias, scaled, added to what is there when the product accumulates. */
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

/** As {@link finish8} for one row and the panels `panel`, `panel + apart`, and so on, whose sums [4][8] are. */
export function finish_four(params: LinearParams, y: usize, sums: usize, panel: u32, apart: u32): void {
  for (const end = panel + 4 * apart; panel < end; panel += apart) {
    finish8(params, y + ((panel as usize) << 5), sums, panel);
    sums += 32;
  }
}
