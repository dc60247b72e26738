/**
 * y[rows, outputs] (+)= x[rows, inner] · wᵀ (+ bias) with integer weights, for a range of panels.
 *
 *   q        x [rows ≤ ROW_BLOCK], quantised per row and group of 32 inputs (quantise.as.ts)
 *   w        packed [panels][groups]: a head, then four inputs of an output side by side, so that one instruction can take their dot product:
 *            for int8 [8 quads of inputs][8 outputs][4] bytes, each the integer plus 128; for formats of four bits [4][8 outputs][4] bytes,
 *            whose low nibbles are inputs 8j to 8j + 3, the high ones 8j + 4 to 8j + 7. The head has 8 scales, f16 or, in mxfp4, u8; uint4 has
 *            8 zeros f16 after them. Nibbles are, for int4, the integer plus 8; for uint4 the integer; for mxfp4 and iq4 a code of a table
 *   scratch  sums [ROW_BLOCK][8] f32, a cache line, a slice of weights unpacked to bytes
 *
 * `instructions` (instructions.as.ts) must be those that `q` was quantised for; all give the same bits. Dot products within a group are exact
 * integers, at most 32 · 128 · 127 for the values of weights. Weights are multiplied as they are stored, which is higher by a constant of the
 * format (codes are raised by their table): a row's group has the correction, that constant times -Σ q.
 *
 *   plain    bytes widen to i16, the even inputs of a quad and the odd ones, whose products are added to i32; four bits are unpacked
 *            to bytes slice by slice
 *   relaxed  int4, uint4 and mxfp4: i8 times a nibble, which is the seven-bit operand that makes the instruction exact (pairs ≤ 3,810,
 *            eight of them within i16). Integers of mxfp4, raised by 12, may leave i16, but the sums begin with the correction, and what is
 *            left fits (16 · 127 · 12), so that wrapping around does no harm
 *   dot      linear_dot.as.ts
 *
 * Groups are then scaled and added in order, one accumulator per output, so bits depend neither on the tile nor on the instructions (E2).
 */
import { DOT_SIGNED, DOT_UNSIGNED, RELAXED } from './instructions.as';
import { four_panels_iq4, four_panels_mxfp4_plain } from './linear_codes_row.as';
import { tiles_dot } from './linear_dot.as';
import { four_panels_dot } from './linear_dot_row.as';
import { four_panels_int4, four_panels_int8, four_panels_mxfp4, four_panels_uint4 } from './linear_int_row.as';
import { nibbles_to_bytes, tiles_codes, tiles_int8, tiles_uint8 } from './linear_int_tiles.as';
import { tiles_int4_relaxed, tiles_mxfp4_relaxed, tiles_uint4_relaxed } from './linear_relaxed.as';
import { AFTER_SUMS, FEW_ROWS, finish8, finish_four, INT8, IQ4, LinearParams, MXFP4, panel_group, SINK, UINT4 } from './panels.as';
import { group_bytes } from './quantise.as';
import { touch } from './simd.as';
import { codes_to_int8 } from './table_codes.as';

/**
 * Groups per slice of a panel: 4 KiB of int8, which stay in the first-level cache while rows pass. With at most FEW_ROWS rows the
 * slice has SHORT_SLICE_GROUPS.
 */
export const SLICE_GROUPS: u32 = 16;
const SHORT_SLICE_GROUPS: u32 = 4;

/** Computes the outputs of rows [first, first + rows) and panels [panelStart, panelEnd). `q` has the quantised rows. */
export function linear_int(
  params: LinearParams,
  q: usize,
  first: u32,
  rows: u32,
  panelStart: u32,
  panelEnd: u32,
  scratch: usize,
  instructions: u32,
): void {
  const w = params.weight;
  const format = params.format;
  const yStride = params.outStride;
  const y = params.out + (first as usize) * yStride;
  const groups = (params.inner + 31) >> 5;
  const groupBytes = panel_group(format);
  const panelBytes = (groups as usize) * groupBytes;
  const rowGroup = group_bytes(format, instructions);
  const qStride = (groups as usize) * rowGroup;
  let panel = panelStart;
  if (rows == 1 && is_streamed(format, instructions)) {
    // Each iteration takes one panel of each quarter: four long streams, which suit the prefetchers of a CPU best.
    const quarter = (panelEnd - panelStart) >> 2;
    const apart = (quarter as usize) * panelBytes;
    for (const end = panelStart + quarter; panel < end; panel++) {
      four_panels(format, instructions, q, w + (panel as usize) * panelBytes, apart, groups, scratch);
      finish_four(params, y, scratch, panel, quarter);
    }
    panel = panelStart + 4 * quarter;
  }
  const most = rows > FEW_ROWS ? SLICE_GROUPS : SHORT_SLICE_GROUPS;
  for (; panel < panelEnd; panel++) {
    memory.fill(scratch, 0, (rows as usize) << 5);
    const wPanel = w + (panel as usize) * panelBytes;
    for (let group: u32 = 0; group < groups; group += most) {
      const count = min<u32>(most, groups - group);
      const from = wPanel + (group as usize) * groupBytes;
      touch(from + (count as usize) * groupBytes, (count as usize) * groupBytes, scratch + SINK);
      tiles_of(format, instructions, q + (group as usize) * rowGroup, qStride, from, count, scratch, rows);
    }
    for (let row: u32 = 0; row < rows; row++) {
      const to = y + (row as usize) * yStride + ((panel as usize) << 5);
      finish8(params, to, scratch + ((row as usize) << 5), panel);
    }
  }
}

/** Whether one row is multiplied straight from the panels; int4 and uint4 are unpacked first where no instruction multiplies nibbles. */
// @ts-ignore: decorator
@inline
function is_streamed(format: u32, instructions: u32): bool {
  return (ASC_FEATURE_RELAXED_SIMD && instructions >= RELAXED) || format == INT8 || format >= MXFP4;
}

/** sums[4][8] = one row · four panels, `apart` bytes from one another. */
// @ts-ignore: decorator
@inline
function four_panels(format: u32, instructions: u32, q: usize, w: usize, apart: usize, groups: u32, sums: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD && instructions >= DOT_UNSIGNED)
    four_panels_dot(format, instructions == DOT_SIGNED, q, w, apart, groups, sums);
  else if (format == INT8) four_panels_int8(q, w, apart, groups, sums);
  else if (format == IQ4) four_panels_iq4(q, w, apart, groups, sums);
  else if (!ASC_FEATURE_RELAXED_SIMD || instructions != RELAXED) four_panels_mxfp4_plain(q, w, apart, groups, sums);
  else if (ASC_FEATURE_RELAXED_SIMD) {
    if (format == UINT4) four_panels_uint4(q, w, apart, groups, sums);
    else if (format == MXFP4) four_panels_mxfp4(q, w, apart, groups, sums);
    else four_panels_int4(q, w, apart, groups, sums);
  }
}

/** sums[rows][8] += q · w for a slice of a panel. `scratch` begins with the sums. */
function tiles_of(format: u32, instructions: u32, q: usize, qStride: usize, w: usize, count: u32, scratch: usize, rows: u32): void {
  if (ASC_FEATURE_RELAXED_SIMD && instructions >= DOT_UNSIGNED)
    tiles_dot(format, instructions == DOT_SIGNED, q, qStride, w, count, scratch, rows);
  else if (format == INT8) tiles_int8(q, qStride, w, count, scratch, rows);
  else if (ASC_FEATURE_RELAXED_SIMD && instructions == RELAXED && format != IQ4) {
    if (format == UINT4) tiles_uint4_relaxed(q, qStride, w, count, scratch, rows);
    else if (format == MXFP4) tiles_mxfp4_relaxed(q, qStride, w, count, scratch, rows);
    else tiles_int4_relaxed(q, qStride, w, count, scratch, rows);
  } else {
    const unpacked = scratch + AFTER_SUMS;
    if (format >= MXFP4) {
      codes_to_int8(format, w, unpacked, count);
      tiles_codes(q, qStride, unpacked, count, scratch, rows);
    } else if (format == UINT4) {
      nibbles_to_bytes(32, w, unpacked, count);
      tiles_uint8(q, qStride, unpacked, count, scratch, rows);
    } else {
      nibbles_to_bytes(16, w, unpacked, count);
      tiles_int8(q, qStride, unpacked, count, scratch, rows);
    }
  }
}
