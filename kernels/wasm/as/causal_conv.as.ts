/** The causal convolution of recurrent layers. Pure functions on raw pointers, as in linear_float.as.ts. */
import { silu4 } from './gates.as';
import { CausalConvParams, StateSegment } from './recurrence_params.as';
import { madd } from './simd.as';

/** Channels whose weights and windows a call of {@link causal_conv} keeps at hand. */
export const CONV_CHANNELS: u32 = 256;

/**
 * out[r, c] = sum of weight[c, j] · x[r - taps + 1 + j, c] over the 2 to 4 taps (+ bias[c]), through SiLU if `isActivated`, for channels
 * [first, last) of a segment, at most CONV_CHANNELS; `first` is a multiple of 8. Saves the last taps - 1 inputs. `zeros`: room for
 * CONV_CHANNELS f32.
 */
export function causal_conv(params: CausalConvParams, segment: StateSegment, first: u32, last: u32, zeros: usize): void {
  const taps = params.taps as i32;
  const isActivated = params.isActivated;
  const skipped = (first as usize) << 2;
  if (segment.from < 0) memory.fill(zeros, 0, (CONV_CHANNELS as usize) << 2);
  const blank = zeros - skipped;
  for (let row: i32 = 0; row < (segment.rows as i32); row++) {
    // Inputs of the taps, the newest last; taps that the convolution lacks read the newest, times nothing.
    const x3 = input_at(params, segment, row, blank);
    const x2 = input_at(params, segment, row - 1, blank);
    const x1 = taps > 2 ? input_at(params, segment, row - 2, blank) : x3;
    const x0 = taps > 3 ? input_at(params, segment, row - 3, blank) : x3;
    const to = params.out + ((segment.row + (row as u32)) as usize) * params.outStride;
    for (let c = first; c < last; c += 4) {
      const at = (c as usize) << 2;
      let weight = params.weight + (((c >> 3) * (taps as u32)) << 5) + ((c & 4) << 2);
      let sum = params.bias == 0 ? f32x4.splat(0) : v128.load(params.bias + at);
      if (taps > 3) {
        sum = madd(v128.load(weight), v128.load(x0 + at), sum);
        weight += 32;
      }
      if (taps > 2) {
        sum = madd(v128.load(weight), v128.load(x1 + at), sum);
        weight += 32;
      }
      sum = madd(v128.load(weight), v128.load(x2 + at), sum);
      sum = madd(v128.load(weight, 32), v128.load(x3 + at), sum);
      v128.store(to + at, isActivated ? silu4(sum) : sum);
    }
  }
  // The window that the segment began with is read by other saves, so it is overwritten last.
  save_windows(params, segment, first, last, blank, false);
  save_windows(params, segment, first, last, blank, true);
}

/** Returns the address of the inputs of row `row` of a segment; rows before 0 are in the slot that it begins with, or `blank`. */
// @ts-ignore: decorator
@inline
function input_at(params: CausalConvParams, segment: StateSegment, row: i32, blank: usize): usize {
  if (row >= 0) return params.x + ((segment.row + (row as u32)) as usize) * params.xStride;
  if (segment.from < 0) return blank;
  const slot = params.state + (segment.from as usize) * params.slotBytes;
  return slot + ((params.taps - 1 + row) as usize) * ((params.channels as usize) << 2);
}

function save_windows(
  params: CausalConvParams,
  segment: StateSegment,
  first: u32,
  last: u32,
  blank: usize,
  isOwn: bool,
): void {
  const skipped = (first as usize) << 2;
  const bytes = ((last - first) as usize) << 2;
  const window = (params.taps - 1) as i32;
  for (let save: u32 = 0; save < segment.numSaves; save++) {
    const at = segment.saves + ((save as usize) << 3);
    const slot = load<u32>(at, 4);
    if (((slot as i32) == segment.from) != isOwn) continue;
    const rows = load<u32>(at) as i32;
    let to = params.state + (slot as usize) * params.slotBytes + skipped;
    for (let i = rows - window; i < rows; i++) {
      memory.copy(to, input_at(params, segment, i, blank) + skipped, bytes);
      to += (params.channels as usize) << 2;
    }
  }
}
