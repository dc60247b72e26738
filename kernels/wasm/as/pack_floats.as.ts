/**
 * Rows of floats into the panels that products read. Values are those of weight_format.ts, which is the reference; divisions and rounding
 * are in f64, as there. Eight rows that fill a panel go together, fewer one by one.
 */
import { half_value, normal_half } from './halves.as';
import { put_lane } from './pack.as';
import { ROWS_INT8, store_int4_of_bytes, store_int8 } from './panel_lanes.as';
import { F16, F32, INT4, INT8, panel_bytes, panel_group, UINT4 } from './panels.as';

/** The smallest scale: 2^-14. */
const MIN_NORMAL: f64 = 0.00006103515625;

/** `values` [rows][inner] f32. `room`: a group's integers and scales of eight rows, 512 bytes, then 128 for the end of a row. */
export function pack_rows(format: u32, values: usize, rows: u32, inner: u32, w: usize, firstOutput: u32, room: usize): void {
  const panelBytes = panel_bytes(format, inner);
  for (let row: u32 = 0; row < rows; ) {
    const output = firstOutput + row;
    const lane = output & 7;
    const count = min<u32>(8 - lane, rows - row);
    const panel = w + ((output >> 3) as usize) * panelBytes;
    const from = values + (((row * inner) as usize) << 2);
    if (format == F32 || format == F16) pack_floats(format, from, count, inner, panel, lane);
    else pack_quantised(format, from, count, inner, panel, lane, room);
    row += count;
  }
}

function pack_floats(format: u32, from: usize, count: u32, inner: u32, panel: usize, lane: u32): void {
  for (const end = lane + count; lane < end; lane++) {
    for (let k: usize = 0; k < (inner as usize); k++, from += 4) {
      if (format == F32) store<f32>(panel + (k << 5) + ((lane as usize) << 2), load<f32>(from));
      else store<u16>(panel + (k << 4) + ((lane as usize) << 1), normal_half(load<f32>(from)));
    }
  }
}

function pack_quantised(format: u32, from: usize, count: u32, inner: u32, panel: usize, lane: u32, room: usize): void {
  const scales = room + 256;
  const zeros = room + 272;
  const end = room + 512;
  const step = panel_group(format);
  // Zeros lie before the integers, where int4 has its scales.
  const integers = format == UINT4 ? panel + 16 : panel;
  const apart = integers - panel;
  for (let k: u32 = 0; k < inner; k += 32, panel += step) {
    for (let row: u32 = 0; row < count; row++) {
      let at = from + (((row * inner + k) as usize) << 2);
      const width = min<u32>(32, inner - k);
      if (width < 32) {
        memory.fill(end, 0, 128);
        memory.copy(end, at, (width as usize) << 2);
        at = end;
      }
      quantise_group(format, at, room + ((row as usize) << 5), scales + ((row as usize) << 1), zeros + ((row as usize) << 1));
    }
    if (count == 8) {
      v128.store(panel, v128.load(scales));
      if (format == UINT4) v128.store(panel, v128.load(zeros), 16);
      if (format == INT8) store_int8(panel + 16, room, 32);
      else store_int4_of_bytes(panel + apart + 16, room);
    } else {
      for (let row: u32 = 0; row < count; row++) {
        const bytes = room + ((row as usize) << 5);
        const half = load<u16>((format == UINT4 ? zeros : scales) + ((row as usize) << 1));
        put_lane(format == INT8 ? INT8 : INT4, panel + apart, lane + row, half, ROWS_INT8, bytes);
        if (format == UINT4) store<u16>(panel + (((lane + row) as usize) << 1), load<u16>(scales + ((row as usize) << 1)));
      }
    }
  }
}

/**
 * round(value / scale), halves up, within the format; 0 for what is no number. 32 values to 32 bytes, those of uint4 less 8; bits of the
 * scale, and of uint4's zero.
 */
function quantise_group(format: u32, from: usize, to: usize, scaleAt: usize, zeroAt: usize): void {
  let low: i32 = format == INT8 ? -127 : -8;
  let high: i32 = format == INT8 ? 127 : 7;
  const half = format == UINT4 ? spread_scale(from) : scale_of(format, from);
  store<u16>(scaleAt, half);
  const exactScale = half_value(half) as f64;
  if (format == UINT4) {
    low = -(min<f64>(15.0, floor<f64>((0.0 - (lowest(from) as f64)) / exactScale + 0.5)) as i32);
    high = 15 + low;
    store<u16>(zeroAt, normal_half(-low as f32));
  }
  const shift = i8x16.splat(format == UINT4 ? (-low - 8) as i8 : 0);
  const scale = f64x2.splat(exactScale);
  const inverse = f64x2.splat(1.0 / exactScale);
  const inverse4 = f32x4.splat((1.0 / exactScale) as f32);
  for (let i: usize = 0; i < 32; i += 16) {
    const a = quanta(from + (i << 2), scale, inverse, inverse4, low, high);
    const b = quanta(from + (i << 2) + 16, scale, inverse, inverse4, low, high);
    const c = quanta(from + (i << 2) + 32, scale, inverse, inverse4, low, high);
    const d = quanta(from + (i << 2) + 48, scale, inverse, inverse4, low, high);
    v128.store(to + i, i8x16.add(i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(a, b), i16x8.narrow_i32x4_s(c, d)), shift));
  }
}

function scale_of(format: u32, from: usize): u16 {
  let extreme4 = f32x4.splat(0);
  // In this order what is no number is left out.
  for (let i: usize = 0; i < 128; i += 16) extreme4 = f32x4.pmax(extreme4, f32x4.abs(v128.load(from + i)));
  const extreme = greatest(extreme4);
  let exact = (extreme as f64) / 127.0;
  if (format != INT8) {
    // The sign is that of the first value of this magnitude.
    let at = from;
    while (extreme > 0 && abs<f32>(load<f32>(at)) != extreme) at += 4;
    exact = (extreme > 0 ? (load<f32>(at) as f64) : 0.0) / -8.0;
  }
  return abs<f64>(exact) < MIN_NORMAL ? (exact < 0 ? 0x8400 : 0x0400) : normal_half(exact as f32);
}

/** From the lowest value to the highest, nothing among them. */
function spread_scale(from: usize): u16 {
  let highest = f32x4.splat(0);
  for (let i: usize = 0; i < 128; i += 16) highest = f32x4.pmax(highest, v128.load(from + i));
  const exact = ((greatest(highest) as f64) - (lowest(from) as f64)) / 15.0;
  return exact < MIN_NORMAL ? 0x0400 : normal_half(exact as f32);
}

function lowest(from: usize): f32 {
  let lowest4 = f32x4.splat(0);
  for (let i: usize = 0; i < 128; i += 16) lowest4 = f32x4.pmax(lowest4, f32x4.neg(v128.load(from + i)));
  return 0 - greatest(lowest4);
}

function greatest(v: v128): f32 {
  return max<f32>(
    max<f32>(f32x4.extract_lane(v, 0), f32x4.extract_lane(v, 1)),
    max<f32>(f32x4.extract_lane(v, 2), f32x4.extract_lane(v, 3)),
  );
}

// @ts-ignore: decorator
@inline
function quanta(from: usize, scale: v128, inverse: v128, inverse4: v128, low: i32, high: i32): v128 {
  const values = v128.load(from);
  const half4 = f32x4.splat(0.5);
  // In f32 a quotient within the format is within 3e-5: only what is near a half has to be known better.
  const near = f32x4.add(f32x4.mul(values, inverse4), half4);
  const whole = f32x4.floor(near);
  const isKnown = f32x4.lt(f32x4.abs(f32x4.sub(f32x4.sub(near, whole), half4)), f32x4.splat(0.4999));
  let q = i32x4.trunc_sat_f32x4_s(whole);
  if (!i32x4.all_true(isKnown)) {
    const upper = i8x16.shuffle(values, values, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    const a = rounded(f64x2.promote_low_f32x4(values), scale, inverse);
    const b = rounded(f64x2.promote_low_f32x4(upper), scale, inverse);
    q = i8x16.shuffle(
      i32x4.trunc_sat_f64x2_s_zero(a),
      i32x4.trunc_sat_f64x2_s_zero(b),
      0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23,
    );
  }
  return i32x4.min_s(i32x4.max_s(q, i32x4.splat(low)), i32x4.splat(high));
}

/** floor(value / scale + 0.5): a product is within 2^-44 of the quotient, so only what is near a half is divided. */
// @ts-ignore: decorator
@inline
function rounded(values: v128, scale: v128, inverse: v128): v128 {
  const half = f64x2.splat(0.5);
  const near = f64x2.add(f64x2.mul(values, inverse), half);
  const whole = f64x2.floor(near);
  const apart = f64x2.abs(f64x2.sub(f64x2.sub(near, whole), half));
  if (!v128.any_true(f64x2.gt(apart, f64x2.splat(0.5 - 1e-9)))) return whole;
  return f64x2.floor(f64x2.add(f64x2.div(values, scale), half));
}
