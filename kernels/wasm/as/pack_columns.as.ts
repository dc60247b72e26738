/**
 * Packs four-bit integers of rows that are stored side by side, as in GPTQ and AWQ files, into panels. The reference is
 * kernels/weights/stored_columns.ts.
 */
import { eights_of_pairs } from './panel_lanes.as';
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
    v128.store(to, eights_of_pairs(v128.load(from)));
    v128.store(to, eights_of_pairs(v128.load(from, 16)), 16);
  }
}

/**
 * Stores 32 inputs of eight rows. A word has one input of eight rows, in the nibbles 0, 4, 1, 5, 2, 6, 3, 7; `apart`: bytes to the
 * word of the next input.
 */
// @ts-ignore: decorator
@inline
function store_awq(to: usize, from: usize, apart: usize): void {
  for (const end = to + 128; to < end; to += 32, from += apart << 3) {
    // Even nibbles of a word are rows 0, 4, 1, 5 and odd ones rows 2, 6, 3, 7.
    const first = four_words(from, apart);
    const second = four_words(from + (apart << 2), apart);
    const mask = i8x16.splat(15);
    const even = v128.or(v128.and(first, mask), i32x4.shl(v128.and(second, mask), 4));
    const odd = v128.or(v128.and(i32x4.shr_u(first, 4), mask), v128.andnot(second, mask));
    v128.store(to, i8x16.shuffle(even, odd, 0, 4, 8, 12, 2, 6, 10, 14, 16, 20, 24, 28, 18, 22, 26, 30));
    v128.store(to, i8x16.shuffle(even, odd, 1, 5, 9, 13, 3, 7, 11, 15, 17, 21, 25, 29, 19, 23, 27, 31), 16);
  }
}

// @ts-ignore: decorator
@inline
function four_words(from: usize, apart: usize): v128 {
  let words = v128.load32_zero(from);
  words = v128.load32_lane(from + apart, words, 1);
  words = v128.load32_lane(from + 2 * apart, words, 2);
  return v128.load32_lane(from + 3 * apart, words, 3);
}
