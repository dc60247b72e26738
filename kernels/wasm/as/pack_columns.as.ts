/**
 * Packs four-bit integers of rows that are stored side by side, as in GPTQ and AWQ files, into panels. The reference is
 * kernels/weights/stored_columns.ts.
 */
import { pairs_in_order } from './panel_lanes.as';
import { INT4_GROUP, panel_bytes, UINT4, UINT4_GROUP } from './panels.as';

const GPTQ: u32 = 0;
/** 8 in f16. */
const EIGHT: u16 = 0x4800;

/**
 * Packs `inputs` inputs, from `firstInput` on, of `rows` rows out of `width` rows stored side by side, into panels of `inner` inputs.
 * `rows` and `width` are multiples of 8. Scales and zeros are f16 [groups][width]; a `zeros` of 0 means that all are 8. `groupInputs`
 * inputs share a scale; `skip` inputs of the first group precede `data`.
 */
export function pack_columns(
  format: u32,
  source: u32,
  data: usize,
  scales: usize,
  zeros: usize,
  width: u32,
  rows: u32,
  inputs: u32,
  groupInputs: u32,
  skip: u32,
  inner: u32,
  w: usize,
  firstOutput: u32,
  firstInput: u32,
): void {
  const panelBytes = panel_bytes(format, inner);
  const isUint4 = format == UINT4;
  const head: usize = isUint4 ? 32 : 16;
  const step: usize = isUint4 ? UINT4_GROUP : INT4_GROUP;
  const first = w + ((firstInput >> 5) as usize) * step;
  for (let row: u32 = 0; row < rows; row += 8) {
    let panel = first + (((firstOutput + row) >> 3) as usize) * panelBytes;
    for (let input: u32 = 0; input < inputs; input += 32) {
      const at = ((((skip + input) / groupInputs) * width + row) as usize) << 1;
      v128.store(panel, v128.load(scales + at));
      if (isUint4) v128.store(panel, zeros ? v128.load(zeros + at) : i16x8.splat(EIGHT), 16);
      if (source == GPTQ) store_gptq(panel + head, data + ((((input >> 3) * width + row) as usize) << 2), (width as usize) << 2);
      else store_awq(panel + head, data + (((input * width + row) as usize) >> 1), (width as usize) >> 1);
      panel += step;
    }
  }
}

/** Stores 32 inputs of eight rows. A word has eight inputs of one row; `apart`: bytes to the words of the next eight inputs. */
// @ts-ignore: decorator
@inline
function store_gptq(to: usize, from: usize, apart: usize): void {
  for (const end = to + 128; to < end; to += 32, from += apart) {
    const a = v128.load(from);
    const b = v128.load(from, 16);
    v128.store(to, pairs_in_order(i8x16.shuffle(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)));
    v128.store(to, pairs_in_order(i8x16.shuffle(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31)), 16);
  }
}

/**
 * Stores 32 inputs of eight rows. A word has one input of eight rows, in the nibbles 0, 4, 1, 5, 2, 6, 3, 7; `apart`: bytes to the
 * word of the next input.
 */
// @ts-ignore: decorator
@inline
function store_awq(to: usize, from: usize, apart: usize): void {
  const mask: u32 = 0x0f0f0f0f;
  for (const end = to + 128; to < end; to += 16, from += apart << 2) {
    const a = load<u32>(from);
    const b = load<u32>(from + apart);
    const c = load<u32>(from + 2 * apart);
    const d = load<u32>(from + 3 * apart);
    // Even nibbles are rows 0, 4, 1, 5 and odd ones rows 2, 6, 3, 7. Each lane pairs inputs a and c, or b and d.
    let all = i32x4.splat((a & mask) | ((c & mask) << 4));
    all = i32x4.replace_lane(all, 1, (b & mask) | ((d & mask) << 4));
    all = i32x4.replace_lane(all, 2, ((a >> 4) & mask) | (c & ~mask));
    all = i32x4.replace_lane(all, 3, ((b >> 4) & mask) | (d & ~mask));
    v128.store(to, i8x16.shuffle(all, all, 0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15));
  }
}
