/**
 * Packs rows of stored integers (int8, int4, Q8_0, Q4_0) into the int8 and int4 panels that products read, once at load. Values are
 * those of weight_format.ts, which is the reference. Eight rows that fill a panel are packed together, fewer one by one.
 *
 *   w  [panels]..., as linear_float.as.ts and linear_int.as.ts describe; outputs [firstOutput, firstOutput + rows) of the matrix
 */
import { Q4_0, Q8_0, ROWS_INT4, ROWS_INT8, store_int4, store_int8 } from './panel_lanes.as';
import { INT8, panel_bytes, panel_group } from './panels.as';

/** Returns the bytes from one stored group of a row to the next. */
// @ts-ignore: decorator
@inline
function group_bytes(source: u32): usize {
  if (source == ROWS_INT8) return 32;
  if (source == ROWS_INT4) return 16;
  return source == Q8_0 ? 34 : 18;
}

/**
 * Packs stored integers without rounding them again. `dataRow`, `scaleRow`: bytes from one row to the next. For GGUF blocks, which
 * begin with their scale, `data` and `scales` are the same address.
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
  const panelGroup = panel_group(format);
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
      panel += panelGroup;
    }
    row += count;
  }
}

/** Copies the scales of eight rows to a group of a panel. Returns false when one is subnormal, infinite or NaN. */
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

/**
 * Packs a group of one row. A subnormal scale, which a GPU would flush, becomes the smallest normal one, and the integers are scaled
 * down to match. An infinite or NaN scale becomes 0.
 */
export function put_lane(format: u32, panel: usize, lane: u32, half: u32, source: u32, data: usize): void {
  let factor: f64 = 1;
  const exponent = half & 0x7c00;
  if (exponent == 0x7c00) half = 0;
  else if (exponent == 0 && (half & 0x3ff) != 0) {
    // A subnormal f16 is its mantissa times 2^-24; the factor is its ratio to 2^-14.
    factor = ((half & 0x3ff) as f64) / 1024.0;
    half = (half & 0x8000) | 0x0400;
  }
  store<u16>(panel + ((lane as usize) << 1), half as u16);
  const at = panel + 16 + ((lane as usize) << 2);
  if (format == INT8) {
    for (let i: u32 = 0; i < 32; i += 4) store<u32>(at + ((i as usize) << 3), four_bytes(source, data, i, factor, 128));
  } else {
    for (let i: u32 = 0; i < 32; i += 8) {
      const low = four_bytes(source, data, i, factor, 8);
      store<u32>(at + ((i as usize) << 2), low | (four_bytes(source, data, i + 4, factor, 8) << 4));
    }
  }
}

/** Returns the integers `i` to `i + 3` of a stored group, like {@link stored}, each plus `raised`, in a byte each. */
// @ts-ignore: decorator
@inline
function four_bytes(source: u32, data: usize, i: u32, factor: f64, raised: i32): u32 {
  let bytes: u32 = 0;
  for (let j: u32 = 0; j < 4; j++) bytes |= (((stored(source, data, i + j, factor) + raised) & 0xff) as u32) << (8 * j);
  return bytes;
}

/** Returns integer `i` of a stored group, times `factor` and rounded half up. */
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
