/**
 * Rows as files store them into the panels that products read, once at load. Values are those of weight_format.ts, which is the
 * reference; divisions and rounding are in f64, as there. Eight rows that fill a panel go together, fewer one by one.
 *
 *   w  [panels]..., as linear_float.as.ts and linear_int.as.ts describe; outputs [firstOutput, firstOutput + rows) of the matrix
 */
import { half_value, normal_half } from './halves.as';
import { F16, F32, INT4_GROUP, INT8, INT8_GROUP, panel_bytes } from './panels.as';
import { load4_f16 } from './simd.as';

/** What integers lie in: as weight_format.ts has them, their scales elsewhere, or in GGUF's blocks, which begin with theirs. */
const ROWS_INT8: u32 = 0;
const ROWS_INT4: u32 = 1;
const Q8_0: u32 = 2;
const Q4_0: u32 = 3;

/** What floats lie in. */
const FROM_F16: u32 = 1;
const FROM_BF16: u32 = 2;

/** Bytes from one group to the next. */
// @ts-ignore: decorator
@inline
function group_bytes(source: u32): usize {
  if (source == ROWS_INT8) return 32;
  if (source == ROWS_INT4) return 16;
  return source == Q8_0 ? 34 : 18;
}

/** to[i] = from[i] in f32, for a whole number of fours and the rest; exact. */
export function widen(source: u32, from: usize, count: u32, to: usize): void {
  const end = to + ((count as usize) << 2);
  if (source == FROM_BF16) {
    for (; to + 16 <= end; to += 16, from += 8) v128.store(to, i32x4.shl(v128.load_ext<u16>(from), 16));
    for (; to < end; to += 4, from += 2) store<u32>(to, (load<u16>(from) as u32) << 16);
    return;
  }
  const last = i32x4.splat(0x7bff);
  const broken = i32x4.splat(0x7f800000);
  for (; to < end; to += 16, from += 8) {
    // What is no number stays none.
    const isBroken = i32x4.gt_s(v128.and(v128.load_ext<u16>(from), i32x4.splat(0x7fff)), last);
    const value = v128.or(load4_f16(from), v128.and(isBroken, broken));
    if (to + 16 <= end) v128.store(to, value);
    else for (let i: usize = 0; to + (i << 2) < end; i++) store<f32>(to + (i << 2), lane_of(value, i as u32));
  }
}

// @ts-ignore: decorator
@inline
function lane_of(v: v128, i: u32): f32 {
  if (i == 0) return f32x4.extract_lane(v, 0);
  return i == 1 ? f32x4.extract_lane(v, 1) : f32x4.extract_lane(v, 2);
}

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
  const end = room + 512;
  const step = format == INT8 ? INT8_GROUP : INT4_GROUP;
  for (let k: u32 = 0; k < inner; k += 32, panel += step) {
    for (let row: u32 = 0; row < count; row++) {
      let at = from + (((row * inner + k) as usize) << 2);
      const width = min<u32>(32, inner - k);
      if (width < 32) {
        memory.fill(end, 0, 128);
        memory.copy(end, at, (width as usize) << 2);
        at = end;
      }
      store<u16>(scales + ((row as usize) << 1), quantise_group(format, at, room + ((row as usize) << 5)));
    }
    if (count == 8) {
      v128.store(panel, v128.load(scales));
      if (format == INT8) store_int8(panel + 16, room, 32);
      else store_int4_of_bytes(panel + 16, room);
    } else {
      for (let row: u32 = 0; row < count; row++)
        put_lane(format, panel, lane + row, load<u16>(scales + ((row as usize) << 1)), ROWS_INT8, room + ((row as usize) << 5));
    }
  }
}

/** round(value / scale), halves up, within the format; 0 for what is no number. 32 values to 32 bytes; the scale's bits. */
function quantise_group(format: u32, from: usize, to: usize): u16 {
  let extreme4 = f32x4.splat(0);
  // In this order what is no number is left out.
  for (let i: usize = 0; i < 128; i += 16) extreme4 = f32x4.pmax(extreme4, f32x4.abs(v128.load(from + i)));
  const extreme = max<f32>(
    max<f32>(f32x4.extract_lane(extreme4, 0), f32x4.extract_lane(extreme4, 1)),
    max<f32>(f32x4.extract_lane(extreme4, 2), f32x4.extract_lane(extreme4, 3)),
  );
  let exact = (extreme as f64) / 127.0;
  if (format != INT8) {
    // The sign is that of the first value of this magnitude.
    let at = from;
    while (extreme > 0 && abs<f32>(load<f32>(at)) != extreme) at += 4;
    exact = (extreme > 0 ? (load<f32>(at) as f64) : 0.0) / -8.0;
  }
  const half: u16 = abs<f64>(exact) < 0.00006103515625 ? (exact < 0 ? 0x8400 : 0x0400) : normal_half(exact as f32);
  const exactScale = half_value(half) as f64;
  const scale = f64x2.splat(exactScale);
  const inverse = f64x2.splat(1.0 / exactScale);
  const low: i32 = format == INT8 ? -127 : -8;
  const high: i32 = format == INT8 ? 127 : 7;
  for (let i: usize = 0; i < 32; i += 16) {
    const a = quanta(from + (i << 2), scale, inverse, low, high);
    const b = quanta(from + (i << 2) + 16, scale, inverse, low, high);
    const c = quanta(from + (i << 2) + 32, scale, inverse, low, high);
    const d = quanta(from + (i << 2) + 48, scale, inverse, low, high);
    v128.store(to + i, i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(a, b), i16x8.narrow_i32x4_s(c, d)));
  }
  return half;
}

// @ts-ignore: decorator
@inline
function quanta(from: usize, scale: v128, inverse: v128, low: i32, high: i32): v128 {
  const values = v128.load(from);
  const upper = i8x16.shuffle(values, values, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  const a = rounded(f64x2.promote_low_f32x4(values), scale, inverse);
  const b = rounded(f64x2.promote_low_f32x4(upper), scale, inverse);
  const q = i8x16.shuffle(
    i32x4.trunc_sat_f64x2_s_zero(a),
    i32x4.trunc_sat_f64x2_s_zero(b),
    0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23,
  );
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

/**
 * Integers that were stored so, as they are: nothing is rounded again. `dataRow`, `scaleRow`: bytes from one row to the next; `data` and
 * `scales` are the same place for blocks that begin with their scale.
 */
export function pack_stored(
  format: u32,
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
  const panelBytes = panel_bytes(format, inner);
  const groups = (inner + 31) >> 5;
  const isBlocks = source >= Q8_0;
  const isSame = (format == INT8) == (source == ROWS_INT8 || source == Q8_0);
  const dataStep = group_bytes(source);
  const scaleStep = isBlocks ? dataStep : 2;
  if (isBlocks) data += 2;
  for (let row: u32 = 0; row < rows; ) {
    const output = firstOutput + row;
    const lane = output & 7;
    const count = min<u32>(8 - lane, rows - row);
    let panel = w + ((output >> 3) as usize) * panelBytes;
    let from = data + (row as usize) * dataRow;
    let scale = scales + (row as usize) * scaleRow;
    for (let g: u32 = 0; g < groups; g++) {
      if (count == 8 && isSame && gather_scales(panel, scale, scaleRow)) {
        if (source == ROWS_INT8 || source == Q8_0) store_int8(panel + 16, from, dataRow);
        else store_int4(source, panel + 16, from, dataRow);
      } else {
        for (let i: u32 = 0; i < count; i++)
          put_lane(format, panel, lane + i, load<u16>(scale + (i as usize) * scaleRow), source, from + (i as usize) * dataRow);
      }
      from += dataStep;
      scale += scaleStep;
      panel += format == INT8 ? INT8_GROUP : INT4_GROUP;
    }
    row += count;
  }
}

/** Scales of eight rows; false when one of them is not normal. */
// @ts-ignore: decorator
@inline
function gather_scales(to: usize, from: usize, apart: usize): bool {
  let isNormal = true;
  for (let i: usize = 0; i < 8; i++, from += apart) {
    const half = load<u16>(from) as u32;
    const exponent = half & 0x7c00;
    isNormal = isNormal && exponent != 0x7c00 && (exponent != 0 || (half & 0x3ff) == 0);
    store<u16>(to + (i << 1), half as u16);
  }
  return isNormal;
}

/** Sixteen inputs of eight rows, `apart` bytes from one another, two inputs of a row side by side; twice. */
// @ts-ignore: decorator
@inline
function store_int8(to: usize, from: usize, apart: usize): void {
  for (let i: usize = 0; i < 32; i += 16) {
    const at = from + i;
    store8(
      to + (i << 3),
      v128.load(at),
      v128.load(at + apart),
      v128.load(at + 2 * apart),
      v128.load(at + 3 * apart),
      v128.load(at + 4 * apart),
      v128.load(at + 5 * apart),
      v128.load(at + 6 * apart),
      v128.load(at + 7 * apart),
    );
  }
}

// @ts-ignore: decorator
@inline
function store_int4(source: u32, to: usize, from: usize, apart: usize): void {
  store8(
    to,
    fours(source, from),
    fours(source, from + apart),
    fours(source, from + 2 * apart),
    fours(source, from + 3 * apart),
    fours(source, from + 4 * apart),
    fours(source, from + 5 * apart),
    fours(source, from + 6 * apart),
    fours(source, from + 7 * apart),
  );
}

/** 32 inputs of a row as eight u16: inputs a, b, c, d are a | b << 8 | c << 4 | d << 12. */
// @ts-ignore: decorator
@inline
function fours(source: u32, from: usize): v128 {
  const all = v128.load(from);
  const low = in_order(v128.and(all, i8x16.splat(15)));
  const high = in_order(v128.and(i16x8.shr_u(all, 4), i8x16.splat(15)));
  // Blocks have the first 16 inputs in their low nibbles, rows every other four.
  if (source == Q4_0) return both(low, high);
  return i8x16.shuffle(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}

/** Of each four bytes below 16, one u16. */
// @ts-ignore: decorator
@inline
function in_order(bytes: v128): v128 {
  return v128.or(bytes, i32x4.shr_u(bytes, 12));
}

/** The lower u16 of each i32 of one, then of the other. */
// @ts-ignore: decorator
@inline
function both(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
}

/** Eight rows of 32 integers in bytes. */
// @ts-ignore: decorator
@inline
function store_int4_of_bytes(to: usize, from: usize): void {
  store8(
    to,
    fours_of_bytes(from),
    fours_of_bytes(from + 32),
    fours_of_bytes(from + 64),
    fours_of_bytes(from + 96),
    fours_of_bytes(from + 128),
    fours_of_bytes(from + 160),
    fours_of_bytes(from + 192),
    fours_of_bytes(from + 224),
  );
}

// @ts-ignore: decorator
@inline
function fours_of_bytes(from: usize): v128 {
  const eight = i8x16.splat(8);
  return both(in_order(i8x16.add(v128.load(from), eight)), in_order(i8x16.add(v128.load(from, 16), eight)));
}

/** to[k][row] = row[k]: eight rows of eight u16, the other way round. */
// @ts-ignore: decorator
@inline
function store8(to: usize, r0: v128, r1: v128, r2: v128, r3: v128, r4: v128, r5: v128, r6: v128, r7: v128): void {
  const a0 = low16(r0, r1),
    a1 = high16(r0, r1),
    b0 = low16(r2, r3),
    b1 = high16(r2, r3),
    c0 = low16(r4, r5),
    c1 = high16(r4, r5),
    d0 = low16(r6, r7),
    d1 = high16(r6, r7);
  store4(to, low32(a0, b0), high32(a0, b0), low32(c0, d0), high32(c0, d0));
  store4(to + 64, low32(a1, b1), high32(a1, b1), low32(c1, d1), high32(c1, d1));
}

// @ts-ignore: decorator
@inline
function store4(to: usize, a: v128, b: v128, c: v128, d: v128): void {
  v128.store(to, i8x16.shuffle(a, c, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
  v128.store(to, i8x16.shuffle(a, c, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31), 16);
  v128.store(to, i8x16.shuffle(b, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23), 32);
  v128.store(to, i8x16.shuffle(b, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31), 48);
}

// @ts-ignore: decorator
@inline
function low16(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
}

// @ts-ignore: decorator
@inline
function high16(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
}

// @ts-ignore: decorator
@inline
function low32(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
}

// @ts-ignore: decorator
@inline
function high32(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}

/**
 * A group of one row. A scale that a GPU would flush becomes the smallest that it does not, and the integers follow; one that is no
 * number is 0.
 */
function put_lane(format: u32, panel: usize, lane: u32, half: u32, source: u32, data: usize): void {
  let factor: f64 = 1;
  const exponent = half & 0x7c00;
  if (exponent == 0x7c00) half = 0;
  else if (exponent == 0 && (half & 0x3ff) != 0) {
    // In 2^-24s, of 2^-14.
    factor = ((half & 0x3ff) as f64) / 1024.0;
    half = (half & 0x8000) | 0x0400;
  }
  const at = panel + ((lane as usize) << 1);
  store<u16>(at, half as u16);
  for (let i: u32 = 0; i < 32; i += 4) {
    const a = stored(source, data, i, factor);
    const b = stored(source, data, i + 1, factor);
    const c = stored(source, data, i + 2, factor);
    const d = stored(source, data, i + 3, factor);
    if (format == INT8) {
      const to = at + 16 + ((i as usize) << 3);
      store<u16>(to, ((a & 0xff) | ((b & 0xff) << 8)) as u16);
      store<u16>(to, ((c & 0xff) | ((d & 0xff) << 8)) as u16, 16);
    } else {
      const fours = (a + 8) | ((c + 8) << 4) | ((b + 8) << 8) | ((d + 8) << 12);
      store<u16>(at + 16 + ((i as usize) << 2), fours as u16);
    }
  }
}

/** Input i of a group. */
// @ts-ignore: decorator
@inline
function stored(source: u32, data: usize, i: u32, factor: f64): i32 {
  let q: i32;
  if (source == ROWS_INT8 || source == Q8_0) q = load<i8>(data + (i as usize)) as i32;
  else if (source == ROWS_INT4) {
    const byte = load<u8>(data + (((i >> 3) << 2) as usize) + ((i & 3) as usize)) as i32;
    q = ((byte >> ((i & 4) as i32)) & 15) - 8;
  } else q = ((((load<u8>(data + ((i & 15) as usize)) as i32) >> (((i >> 4) << 2) as i32)) & 15) as i32) - 8;
  return factor == 1 ? q : (floor<f64>((q as f64) * factor + 0.5) as i32);
}
