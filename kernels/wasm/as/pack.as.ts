/**
 * Weights into the panels that products read, once at load, and rows of a table out of them. Values are those of
 * weight_format.ts, which is the reference; divisions and rounding are in f64, as there.
 *
 *   values  [rows, inner] f32, outputs [firstOutput, firstOutput + rows) of the matrix
 *   w       [panels]..., as linear_float.as.ts and linear_int.as.ts describe
 */

import { F16, F32, INT4_GROUP, INT8, INT8_GROUP } from './panels.as';

const SLOT_BIT: u32 = 0x80000000;

// @ts-ignore: decorator
@inline
function panel_bytes(format: u32, inner: u32): usize {
  if (format == F32) return (inner as usize) << 5;
  if (format == F16) return (inner as usize) << 4;
  return (((inner + 31) >> 5) as usize) * (format == INT8 ? INT8_GROUP : INT4_GROUP);
}

export function pack_rows(format: u32, values: usize, rows: u32, inner: u32, w: usize, firstOutput: u32): void {
  const panelBytes = panel_bytes(format, inner);
  for (let row: u32 = 0; row < rows; row++) {
    const output = firstOutput + row;
    const lane = (output & 7) as usize;
    const panel = w + ((output >> 3) as usize) * panelBytes;
    const from = values + ((row * inner) as usize << 2);
    if (format == F32) {
      for (let k: usize = 0; k < (inner as usize); k++) store<f32>(panel + (k << 5) + (lane << 2), load<f32>(from + (k << 2)));
    } else if (format == F16) {
      for (let k: usize = 0; k < (inner as usize); k++) {
        store<u16>(panel + (k << 4) + (lane << 1), normal_half(load<f32>(from + (k << 2))));
      }
    } else {
      let group = panel;
      for (let k: u32 = 0; k < inner; k += 32) {
        pack_group(format, from + ((k as usize) << 2), min<u32>(32, inner - k), group, lane);
        group += format == INT8 ? INT8_GROUP : INT4_GROUP;
      }
    }
  }
}

function pack_group(format: u32, from: usize, count: u32, group: usize, lane: usize): void {
  let extreme: f32 = 0;
  for (let i: u32 = 0; i < count; i++) {
    const value = load<f32>(from + ((i as usize) << 2));
    if (abs<f32>(value) > abs<f32>(extreme)) extreme = value;
  }
  const exact: f64 = format == INT8 ? (abs<f32>(extreme) as f64) / 127.0 : (extreme as f64) / -8.0;
  const half: u16 = abs<f64>(exact) < 0.00006103515625 ? (exact < 0 ? 0x8400 : 0x0400) : normal_half(exact as f32);
  store<u16>(group + (lane << 1), half);
  const scale = half_value(half) as f64;
  const data = group + 16 + (lane << 1);
  for (let i: u32 = 0; i < 32; i += 4) {
    const a = quantum(format, from, i, count, scale);
    const b = quantum(format, from, i + 1, count, scale);
    const c = quantum(format, from, i + 2, count, scale);
    const d = quantum(format, from, i + 3, count, scale);
    put_four(format, data, i, a, b, c, d);
  }
}

/** Integers of inputs i to i + 3 of a group. */
// @ts-ignore: decorator
@inline
function put_four(format: u32, data: usize, i: u32, a: i32, b: i32, c: i32, d: i32): void {
  if (format == INT8) {
    const at = data + ((i as usize) << 3);
    store<u16>(at, ((a & 0xff) | ((b & 0xff) << 8)) as u16);
    store<u16>(at, ((c & 0xff) | ((d & 0xff) << 8)) as u16, 16);
  } else {
    store<u16>(data + ((i as usize) << 2), ((a + 8) | ((c + 8) << 4) | ((b + 8) << 8) | ((d + 8) << 12)) as u16);
  }
}

/**
 * Rows of int8 or int4 that were stored so, in the layout of weight_format.ts: as they are, nothing is rounded again.
 *
 *   data    [rows][groups][32 i8, or 16 bytes of int4]
 *   scales  [rows][scaleBytes / 2] f16
 */
export function pack_stored(
  format: u32,
  data: usize,
  scales: usize,
  scaleBytes: usize,
  rows: u32,
  inner: u32,
  w: usize,
  firstOutput: u32,
): void {
  const panelBytes = panel_bytes(format, inner);
  const groups = (inner + 31) >> 5;
  for (let row: u32 = 0; row < rows; row++) {
    const output = firstOutput + row;
    const lane = (output & 7) as usize;
    let group = w + ((output >> 3) as usize) * panelBytes;
    for (let g: u32 = 0; g < groups; g++) {
      store<u16>(group + (lane << 1), load<u16>(scales + (row as usize) * scaleBytes + ((g as usize) << 1)));
      const to = group + 16 + (lane << 1);
      for (let i: u32 = 0; i < 32; i += 4) {
        put_four(format, to, i, stored(format, data, i), stored(format, data, i + 1), stored(format, data, i + 2), stored(format, data, i + 3));
      }
      data += format == INT8 ? 32 : 16;
      group += format == INT8 ? INT8_GROUP : INT4_GROUP;
    }
  }
}

/** Input i of a group. */
// @ts-ignore: decorator
@inline
function stored(format: u32, data: usize, i: u32): i32 {
  if (format == INT8) return load<i8>(data + (i as usize)) as i32;
  const byte = load<u8>(data + (((i >> 3) << 2) as usize) + ((i & 3) as usize)) as i32;
  return ((byte >> ((i & 4) as i32)) & 15) - 8;
}

/** round(value / scale), halves up, within the format; 0 beyond `count` and for what is no number. */
// @ts-ignore: decorator
@inline
function quantum(format: u32, from: usize, i: u32, count: u32, scale: f64): i32 {
  if (i >= count) return 0;
  const exact = floor<f64>((load<f32>(from + ((i as usize) << 2)) as f64) / scale + 0.5);
  if (!(exact == exact)) return 0;
  if (format == INT8) return max<f64>(-127, min<f64>(127, exact)) as i32;
  return max<f64>(-8, min<f64>(7, exact)) as i32;
}

// @ts-ignore: decorator
@unmanaged
export class EmbedParams {
  /** [rows] u32: an id, or SLOT_BIT and a slot */
  tokens: usize;
  /** u32 each: what was drawn before */
  slots: usize;
  table: usize;
  outputs: u32;
  format: u32;
  width: u32;
  out: usize;
  outStride: usize;
  scale: f32;
}

/** out[r, :] = table[token, :] · scale in f32. */
export function embed(params: EmbedParams, start: u32, end: u32): void {
  const format = params.format;
  const width = params.width;
  const scale = params.scale;
  const panelBytes = panel_bytes(format, width);
  for (let row = start; row < end; row++) {
    let token = load<u32>(params.tokens + ((row as usize) << 2));
    if (token >= SLOT_BIT) token = load<u32>(params.slots + (((token - SLOT_BIT) as usize) << 2));
    // Nothing was drawn: whatever comes of this row is nobody's.
    if (token >= params.outputs) token = 0;
    const lane = (token & 7) as usize;
    const panel = params.table + ((token >> 3) as usize) * panelBytes;
    const to = params.out + (row as usize) * params.outStride;
    for (let i: usize = 0; i < (width as usize); i++) {
      let value: f32;
      if (format == F32) value = load<f32>(panel + (i << 5) + (lane << 2));
      else if (format == F16) value = half_value(load<u16>(panel + (i << 4) + (lane << 1)));
      else value = dequantised(format, panel, i, lane);
      store<f32>(to + (i << 2), value * scale);
    }
  }
}

// @ts-ignore: decorator
@inline
function dequantised(format: u32, panel: usize, i: usize, lane: usize): f32 {
  const within = i & 31;
  if (format == INT8) {
    const group = panel + (i >> 5) * INT8_GROUP;
    const q = load<i8>(group + 16 + ((within >> 1) << 4) + (lane << 1) + (within & 1)) as f32;
    // The 0 makes a plain zero of a negative one.
    return q * half_value(load<u16>(group + (lane << 1))) + 0;
  }
  const group = panel + (i >> 5) * INT4_GROUP;
  const byte = load<u8>(group + 16 + ((within >> 2) << 4) + (lane << 1) + (within & 1)) as i32;
  const q = ((byte >> ((((within >> 1) & 1) << 2) as i32)) & 15) - 8;
  return (q as f32) * half_value(load<u16>(group + (lane << 1))) + 0;
}

/** Bits of the nearest f16, ties to even, saturating; 0 below the normal range. */
// @ts-ignore: decorator
@inline
function normal_half(value: f32): u16 {
  const bits = reinterpret<u32>(value);
  const sign = (bits >> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477ff000) return (sign | 0x7bff) as u16;
  if (magnitude < 0x38800000) return sign as u16;
  const rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (sign | ((rounded - 0x38000000) >> 13)) as u16;
}

/** The value of a normal f16 or zero. */
// @ts-ignore: decorator
@inline
function half_value(half: u16): f32 {
  const magnitude = (half as u32) & 0x7fff;
  const sign = ((half as u32) & 0x8000) << 16;
  return reinterpret<f32>(magnitude == 0 ? sign : sign | ((magnitude << 13) + 0x38000000));
}
