/**
 * Packs stored integers 0 to 15, with a scale and a zero per group, into the uint4 panels that products read. Integers stay as they
 * were stored. Scales and zeros become f16, so the minima of GGUF blocks become the nearest zeros. The reference is
 * kernels/weights/zero_points.ts.
 */
import { half_value, half_values, normal_half, normal_halves } from './halves.as';
import { eights, Q4_0, Q4_1, Q4_K, Q4_K_HIGH, ROWS_INT4, ROWS_UINT4, store_int4 } from './panel_lanes.as';
import { panel_bytes, UINT4, UINT4_GROUP } from './panels.as';

/** 2^-14, the smallest normal f16. GPUs may flush smaller numbers to zero. */
const MIN_NORMAL: f64 = 0.00006103515625;
const EIGHT: u16 = 0x4800;

/**
 * Packs `rows` rows from output `firstOutput` on. `dataRow`, `scaleRow`: bytes from one row to the next. GGUF blocks have their own
 * scales; otherwise `scales` is f16 [groups] for int4 and [groups][scale, zero] for uint4.
 */
export function pack_uint4(
  source: u32,
  data: usize,
  dataRow: usize,
  scales: usize,
  scaleRow: usize,
  rows: u32,
  inner: u32,
  w: usize,
  firstOutput: u32,
): void {
  const panelBytes = panel_bytes(UINT4, inner);
  const groups = (inner + 31) >> 5;
  for (let row: u32 = 0; row < rows; ) {
    const output = firstOutput + row;
    const lane = output & 7;
    const count = min<u32>(8 - lane, rows - row);
    let panel = w + ((output >> 3) as usize) * panelBytes;
    const from = data + (row as usize) * dataRow;
    const scale = scales + (row as usize) * scaleRow;
    for (let g: u32 = 0; g < groups; g++) {
      const part = source == Q4_K && g & 1 ? Q4_K_HIGH : source;
      const integers = from + integers_at(source, g);
      if (count == 8 && put_eight(source, from, dataRow, scale, scaleRow, g, panel)) store_int4(part, panel + 32, integers, dataRow);
      else {
        for (let i: u32 = 0; i < count; i++) {
          const factor = put_scale(source, from + (i as usize) * dataRow, scale + (i as usize) * scaleRow, g, panel, lane + i);
          put_integers(part, integers + (i as usize) * dataRow, factor, panel + 32, lane + i);
        }
      }
      panel += UINT4_GROUP;
    }
    row += count;
  }
}

/** Returns the offset in bytes of a group's integers within its row. */
// @ts-ignore: decorator
@inline
function integers_at(source: u32, group: u32): usize {
  const g = group as usize;
  if (source == Q4_K) return 144 * (g >> 3) + 16 + 32 * ((g & 7) >> 1);
  if (source == Q4_1) return 20 * g + 4;
  return source == Q4_0 ? 18 * g + 2 : 16 * g;
}

/** Stores scales and zeros of a group of eight rows. Returns false when a row has a scale for which its integers must change. */
function put_eight(source: u32, data: usize, dataRow: usize, scales: usize, scaleRow: usize, group: u32, panel: usize): bool {
  let isValid = true;
  if (source != Q4_K && source != Q4_1) {
    for (let lane: u32 = 0; lane < 8; lane++, data += dataRow, scales += scaleRow)
      isValid = isValid && put_halves(source, data, scales, group, panel + ((lane as usize) << 1)) == 1;
    return isValid;
  }
  // Scales and minima are held as f32 in the panel's room for integers, which are stored later.
  const floats = panel + 32;
  for (let at = floats; at < floats + 32; at += 4, data += dataRow) {
    const block = block_at(source, data, group);
    isValid = isValid && !is_inf_or_nan(load<u16>(block)) && !is_inf_or_nan(load<u16>(block, 2));
    store<f32>(at, scale_in(source, block, group));
    store<f32>(at, low_in(source, block, group), 32);
  }
  if (!isValid) return false;
  const scaleA = v128.load(floats);
  const scaleB = v128.load(floats, 16);
  const least = f32x4.splat(MIN_NORMAL as f32);
  if (!i32x4.all_true(v128.and(f32x4.ge(f32x4.abs(scaleA), least), f32x4.ge(f32x4.abs(scaleB), least)))) return false;
  const halfA = normal_halves(scaleA);
  const halfB = normal_halves(scaleB);
  const none = f32x4.splat(0);
  const zeroA = normal_halves(f32x4.div(f32x4.sub(none, v128.load(floats, 32)), half_values(halfA)));
  const zeroB = normal_halves(f32x4.div(f32x4.sub(none, v128.load(floats, 48)), half_values(halfB)));
  v128.store(panel, i16x8.narrow_i32x4_u(halfA, halfB));
  v128.store(panel, i16x8.narrow_i32x4_u(zeroA, zeroB), 16);
  return true;
}

/**
 * Stores a row's scale and zero for a group. Returns the factor for its integers: 1 unless the scale is 0 or below the smallest normal
 * f16.
 */
function put_scale(source: u32, data: usize, scales: usize, group: u32, panel: usize, lane: u32): f64 {
  const to = panel + ((lane as usize) << 1);
  if (source != Q4_K && source != Q4_1) return put_halves(source, data, scales, group, to);
  const block = block_at(source, data, group);
  if (is_inf_or_nan(load<u16>(block)) || is_inf_or_nan(load<u16>(block, 2))) return put(to, 0, 0, 0);
  return put_normal(to, scale_in(source, block, group), low_in(source, block, group));
}

// @ts-ignore: decorator
@inline
function block_at(source: u32, data: usize, group: u32): usize {
  return data + (source == Q4_K ? 144 * ((group as usize) >> 3) : 20 * (group as usize));
}

/** The scale of a group of Q4_K or Q4_1. */
// @ts-ignore: decorator
@inline
function scale_in(source: u32, block: usize, group: u32): f32 {
  const d = any_half(load<u16>(block));
  if (source == Q4_1) return d;
  const at = block + 4 + ((group & 7) as usize);
  return d * ((group & 4 ? (load<u8>(at, 4) & 15) | ((load<u8>(at - 4) >> 6) << 4) : load<u8>(at) & 63) as f32);
}

/** Returns the constant that a group of Q4_K or Q4_1 adds to scale · q. */
// @ts-ignore: decorator
@inline
function low_in(source: u32, block: usize, group: u32): f32 {
  const low = any_half(load<u16>(block, 2));
  if (source == Q4_1) return low;
  const at = block + 4 + ((group & 7) as usize);
  return 0 - low * ((group & 4 ? (load<u8>(at, 4) >> 4) | ((load<u8>(at) >> 6) << 4) : load<u8>(at, 4) & 63) as f32);
}

// @ts-ignore: decorator
@inline
function put_halves(source: u32, data: usize, scales: usize, group: u32, to: usize): f64 {
  const g = group as usize;
  let half: u16;
  let zero: u16 = EIGHT;
  if (source == ROWS_UINT4) {
    half = load<u16>(scales + (g << 2));
    zero = load<u16>(scales + (g << 2), 2);
  } else half = load<u16>(source == ROWS_INT4 ? scales + (g << 1) : data + 18 * g);
  if (is_inf_or_nan(half) || is_inf_or_nan(zero)) return put(to, 0, 0, 0);
  if (is_normal(half) && is_normal(zero)) return put(to, half, zero, 1);
  return put_normal(to, any_half(half), 0 - any_half(half) * any_half(zero));
}

/** Stores scale · q + low as scale · (q - zero). Returns the factor for the integers. */
function put_normal(to: usize, scale: f32, low: f32): f64 {
  let factor: f64 = 1;
  if (scale == 0) {
    // A scale of 0: all values are `low`, so `low` becomes the scale, integers are 0 and the zero is -1.
    scale = low;
    factor = 0;
  }
  let half: u16;
  if (abs<f32>(scale) < (MIN_NORMAL as f32)) {
    factor *= (abs<f32>(scale) as f64) / MIN_NORMAL;
    half = scale < 0 ? 0x8400 : 0x0400;
  } else half = normal_half(scale);
  return put(to, half, normal_half((0 - low) / half_value(half)), factor);
}

// @ts-ignore: decorator
@inline
function put(to: usize, half: u16, zero: u16, factor: f64): f64 {
  store<u16>(to, half);
  store<u16>(to, zero, 16);
  return factor;
}

/** Whether an f16 is infinite or NaN. */
// @ts-ignore: decorator
@inline
export function is_inf_or_nan(half: u16): bool {
  return (half & 0x7c00) == 0x7c00;
}

// @ts-ignore: decorator
@inline
function is_normal(half: u16): bool {
  return (half & 0x7c00) != 0 || (half & 0x3ff) == 0;
}

/** The value of an f16 that is neither infinite nor NaN. */
// @ts-ignore: decorator
@inline
export function any_half(half: u16): f32 {
  if (is_normal(half)) return half_value(half);
  const magnitude = ((half & 0x3ff) as f32) * (0.000000059604644775390625 as f32);
  return half & 0x8000 ? -magnitude : magnitude;
}

/** Stores a row's integers of a group, times `factor`. */
function put_integers(part: u32, from: usize, factor: f64, to: usize, lane: u32): void {
  const at = to + ((lane as usize) << 2);
  const all = eights(part, from);
  store<u32>(at, scaled(i32x4.extract_lane(all, 0), factor));
  store<u32>(at, scaled(i32x4.extract_lane(all, 1), factor), 32);
  store<u32>(at, scaled(i32x4.extract_lane(all, 2), factor), 64);
  store<u32>(at, scaled(i32x4.extract_lane(all, 3), factor), 96);
}

/** Returns eight nibbles times `factor`, rounded half up. */
function scaled(eight: u32, factor: f64): u32 {
  let out: u32 = 0;
  for (let shift: u32 = 0; shift < 32; shift += 4) out |= (floor<f64>(((eight >> shift) & 15) as f64 * factor + 0.5) as u32) << shift;
  return out;
}
