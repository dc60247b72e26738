/**
 * Packs stored codes of a table into the mxfp4 and iq4 panels that products read, once at load. The reference is
 * kernels/weights/stored_codes.ts.
 */
import { normal_half } from './halves.as';
import { any_half, is_inf_or_nan } from './pack_uint4.as';
import { eights, eights_of_pairs, Q4_0, ROWS_INT4, store_quads } from './panel_lanes.as';
import { MXFP4, panel_bytes, panel_group } from './panels.as';

/** Rows of codes as weight_format.ts has them, scales elsewhere. */
const ROWS: u32 = 0;
/** Rows of MXFP4 whose bytes have two neighbouring inputs each, scales elsewhere. */
const PAIRS: u32 = 1;
/** GGUF's MXFP4: blocks of an exponent and 32 codes. */
const MXFP4_BLOCKS: u32 = 2;
/** GGUF's IQ4_NL: blocks of a scale f16 and 32 codes. */
const IQ4_NL: u32 = 3;
// The last source is GGUF's IQ4_XS: blocks of a scale f16, six-bit scales of eight groups (two high bits of each in 2 bytes, then four
// low bits of each in 4 bytes), and 256 codes.

/** Packs `rows` rows from output `firstOutput` on. `dataRow`, `scaleRow`: bytes from one row to the next. */
export function pack_codes(
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
  const head: usize = format == MXFP4 ? 8 : 16;
  const groups = (inner + 31) >> 5;
  for (let row: u32 = 0; row < rows; ) {
    const output = firstOutput + row;
    const lane = output & 7;
    const count = min<u32>(8 - lane, rows - row);
    let panel = w + ((output >> 3) as usize) * panelBytes;
    const from = data + (row as usize) * dataRow;
    const scale = scales + (row as usize) * scaleRow;
    for (let group: u32 = 0; group < groups; group++) {
      for (let i: u32 = 0; i < count; i++) {
        const own = (i as usize) * dataRow;
        put_scale(format, source, from + own, scale + (i as usize) * scaleRow, group, panel, lane + i);
      }
      const at = from + codes_at(source, group);
      if (count == 8) {
        store_quads(
          panel + head,
          ordered(source, at),
          ordered(source, at + dataRow),
          ordered(source, at + 2 * dataRow),
          ordered(source, at + 3 * dataRow),
          ordered(source, at + 4 * dataRow),
          ordered(source, at + 5 * dataRow),
          ordered(source, at + 6 * dataRow),
          ordered(source, at + 7 * dataRow),
        );
      } else {
        for (let i: u32 = 0; i < count; i++) {
          const to = panel + head + (((lane + i) as usize) << 2);
          const all = ordered(source, at + (i as usize) * dataRow);
          v128.store32_lane(to, all, 0);
          v128.store32_lane(to, all, 1, 32);
          v128.store32_lane(to, all, 2, 64);
          v128.store32_lane(to, all, 3, 96);
        }
      }
      panel += panelGroup;
    }
    row += count;
  }
}

/** Returns the offset in bytes of a group's codes within its row. */
// @ts-ignore: decorator
@inline
function codes_at(source: u32, group: u32): usize {
  const g = group as usize;
  if (source <= PAIRS) return 16 * g;
  if (source == MXFP4_BLOCKS) return 17 * g + 1;
  return source == IQ4_NL ? 18 * g + 2 : 136 * (g >> 3) + 8 + 16 * (g & 7);
}

/** Returns 32 codes of a row as four u32, like `eights` of panel_lanes.as.ts. */
// @ts-ignore: decorator
@inline
function ordered(source: u32, at: usize): v128 {
  if (source == PAIRS) return eights_of_pairs(v128.load(at));
  return source == ROWS ? eights(ROWS_INT4, at) : eights(Q4_0, at);
}

/** Stores the scale of a row's group. */
// @ts-ignore: decorator
@inline
function put_scale(format: u32, source: u32, data: usize, scales: usize, group: u32, panel: usize, lane: u32): void {
  const g = group as usize;
  if (format == MXFP4) {
    if (source == ROWS) store<u8>(panel + (lane as usize), load<u8>(scales + g));
    else {
      const exponent = load<u8>(source == PAIRS ? scales + g : data + 17 * g) as u32;
      store<u8>(panel + (lane as usize), exponent == 255 || exponent == 0 ? 0 : ((exponent - 1) as u8));
    }
    return;
  }
  let half: u16;
  if (source == ROWS) half = load<u16>(scales + (g << 1));
  else if (source == IQ4_NL) half = iq4_scale(load<u16>(data + 18 * g), 1);
  else {
    const block = data + 136 * (g >> 3);
    const i = (group & 7) as i32;
    const low = ((load<u8>(block + 4 + ((i >> 1) as usize)) as i32) >> (4 * (i & 1))) & 15;
    const high = ((load<u16>(block, 2) as i32) >> (2 * i)) & 3;
    half = iq4_scale(load<u16>(block), ((low | (high << 4)) - 32) as f32);
  }
  store<u16>(panel + ((lane as usize) << 1), half);
}

/** Returns the stored scale of iq4, 64 · d · factor, for a `d` that is an f16 of a file; 0 for an infinity or NaN. */
// @ts-ignore: decorator
@inline
function iq4_scale(d: u16, factor: f32): u16 {
  return is_inf_or_nan(d) ? 0 : normal_half((64.0 as f32) * (any_half(d) * factor));
}
