/**
 * Packs rows of floats into the panels that products read, eight rows at a time. Integer formats are quantised by
 * quantised_values.as.ts.
 */
import { normal_half, normal_halves } from './halves.as';
import { put_lane } from './pack.as';
import { ROWS_INT8, store8, store_int4_of_bytes, store_int8 } from './panel_lanes.as';
import { F16, F32, INT4, INT8, panel_bytes, panel_group, UINT4 } from './panels.as';
import { FLOATS, quantise_groups, SCALES, ZEROS } from './quantised_values.as';
import { floats_of, shift_of } from './widen.as';

/**
 * Packs `values` [rows][inner], whose type is `source` (0 f32, 1 f16, 2 bf16), from output `firstOutput` on. `room`: ROOM bytes of
 * quantised_values.as.ts.
 */
export function pack_rows(
  source: u32,
  values: usize,
  format: u32,
  rows: u32,
  inner: u32,
  w: usize,
  firstOutput: u32,
  room: usize,
): void {
  const panelBytes = panel_bytes(format, inner);
  const rowBytes = (inner as usize) << shift_of(source);
  for (let row: u32 = 0; row < rows; ) {
    const output = firstOutput + row;
    const lane = output & 7;
    const count = min<u32>(8 - lane, rows - row);
    const panel = w + ((output >> 3) as usize) * panelBytes;
    const from = values + (row as usize) * rowBytes;
    if (format == F32 || format == F16) pack_floats(source, format, from, rowBytes, count, inner, panel, lane, room + FLOATS);
    else pack_quantised(source, format, from, rowBytes, count, inner, panel, lane, room);
    row += count;
  }
}

function pack_floats(
  source: u32,
  format: u32,
  from: usize,
  rowBytes: usize,
  count: u32,
  inner: u32,
  panel: usize,
  lane: u32,
  room: usize,
): void {
  for (let k: u32 = 0; k < inner; k += 32) {
    const width = min<u32>(32, inner - k);
    for (let row: u32 = 0; row < count; row++) {
      const to = room + ((row as usize) << 7);
      const at = floats_of(source, from + (row as usize) * rowBytes, width, to);
      if (at != to) memory.copy(to, at, 128);
    }
    if (format == F16 && count == 8 && width == 32) put_halves(room, panel);
    else for (let row: u32 = 0; row < count; row++) put_floats(format, room + ((row as usize) << 7), width, panel, lane + row);
    from += 32 << shift_of(source);
    panel += format == F32 ? 1024 : 512;
  }
}

function put_floats(format: u32, from: usize, width: u32, panel: usize, lane: u32): void {
  for (const end = from + ((width as usize) << 2); from < end; from += 4) {
    if (format == F32) store<f32>(panel + ((lane as usize) << 2), load<f32>(from));
    else store<u16>(panel + ((lane as usize) << 1), normal_half(load<f32>(from)));
    panel += format == F32 ? 32 : 16;
  }
}

/** Stores 32 inputs of eight rows as f16. */
function put_halves(from: usize, panel: usize): void {
  for (let k: usize = 0; k < 32; k += 8, from += 32) {
    store8(
      panel + (k << 4),
      eight_halves(from),
      eight_halves(from + 128),
      eight_halves(from + 256),
      eight_halves(from + 384),
      eight_halves(from + 512),
      eight_halves(from + 640),
      eight_halves(from + 768),
      eight_halves(from + 896),
    );
  }
}

// @ts-ignore: decorator
@inline
function eight_halves(from: usize): v128 {
  return i16x8.narrow_i32x4_u(normal_halves(v128.load(from)), normal_halves(v128.load(from, 16)));
}

function pack_quantised(
  source: u32,
  format: u32,
  from: usize,
  rowBytes: usize,
  count: u32,
  inner: u32,
  panel: usize,
  lane: u32,
  room: usize,
): void {
  const step = panel_group(format);
  // With uint4, put_lane writes zeros where int4 has its scales: directly before the integers.
  const integers = format == UINT4 ? panel + 16 : panel;
  const apart = integers - panel;
  for (let k: u32 = 0; k < inner; k += 32, panel += step) {
    let at = room + FLOATS;
    let stride: usize = 128;
    if (inner - k >= 32 && shift_of(source) == 2) {
      at = from;
      stride = rowBytes;
    } else {
      for (let row: u32 = 0; row < count; row++)
        floats_of(source, from + (row as usize) * rowBytes, min<u32>(32, inner - k), at + ((row as usize) << 7));
    }
    quantise_groups(format, at, stride, count, room);
    if (count == 8) {
      v128.store(panel, v128.load(room, SCALES));
      if (format == UINT4) v128.store(panel, v128.load(room, ZEROS), 16);
      if (format == INT8) store_int8(panel + 16, room, 32);
      else store_int4_of_bytes(panel + apart + 16, room);
    } else {
      for (let row: u32 = 0; row < count; row++) {
        const bytes = room + ((row as usize) << 5);
        const words = room + ((row as usize) << 1);
        const half = format == UINT4 ? load<u16>(words, ZEROS) : load<u16>(words, SCALES);
        put_lane(format == INT8 ? INT8 : INT4, panel + apart, lane + row, half, ROWS_INT8, bytes);
        if (format == UINT4) store<u16>(panel + (((lane + row) as usize) << 1), load<u16>(words, SCALES));
      }
    }
    from += 32 << shift_of(source);
  }
}
