/** Embedding look-up: reads rows of a table out of the panels that products read. */
import { half_value } from './halves.as';
import { F16, F32, INT4, INT8, INT8_GROUP, IQ4, MXFP4, panel_bytes, panel_group, UINT4 } from './panels.as';
import { integers_of_iq4, integers_of_mxfp4 } from './table_codes.as';

const SLOT_BIT: u32 = 0x80000000;

/**
 * Parameters of {@link embed}: a table of `outputs` rows of `width` values, in panels of `format`, and out [rows][width] f32. Strides
 * are bytes.
 */
// @ts-ignore: decorator
@unmanaged
export class EmbedParams {
  /** [rows] u32: an id, or SLOT_BIT and a slot */
  tokens: usize;
  /** u32 per sampler slot: the token that was sampled last. */
  slots: usize;
  table: usize;
  outputs: u32;
  format: u32;
  width: u32;
  out: usize;
  outStride: usize;
  scale: f32;
  isAccumulating: u32;
}

/** out[r, :] (+)= table[token, :] · scale in f32. */
export function embed(params: EmbedParams, start: u32, end: u32): void {
  const format = params.format;
  const width = params.width;
  const scale = params.scale;
  const isAccumulating = params.isAccumulating;
  const panelBytes = panel_bytes(format, width);
  for (let row = start; row < end; row++) {
    let token = load<u32>(params.tokens + ((row as usize) << 2));
    if (token >= SLOT_BIT) token = load<u32>(params.slots + (((token - SLOT_BIT) as usize) << 2));
    // NO_TOKEN in a slot: nothing was sampled, and the result of this row is never used.
    if (token >= params.outputs) token = 0;
    const lane = (token & 7) as usize;
    const panel = params.table + ((token >> 3) as usize) * panelBytes;
    const to = params.out + (row as usize) * params.outStride;
    for (let i: usize = 0; i < (width as usize); i++) {
      let value: f32;
      if (format == F32) value = load<f32>(panel + (i << 5) + (lane << 2));
      else if (format == F16) value = half_value(load<u16>(panel + (i << 4) + (lane << 1)));
      else value = dequantised(format, panel, i, lane);
      value *= scale;
      store<f32>(to + (i << 2), isAccumulating ? load<f32>(to + (i << 2)) + value : value);
    }
  }
}

// @ts-ignore: decorator
@inline
function dequantised(format: u32, panel: usize, i: usize, lane: usize): f32 {
  const within = i & 31;
  if (format == INT8) {
    const group = panel + (i >> 5) * INT8_GROUP;
    const q = ((load<u8>(group + 16 + ((within >> 2) << 5) + (lane << 2) + (within & 3)) as i32) - 128) as f32;
    // Adding 0 turns -0 into +0.
    return q * half_value(load<u16>(group + (lane << 1))) + 0;
  }
  const group = panel + (i >> 5) * panel_group(format);
  const integers = group + (format == UINT4 ? 32 : format == MXFP4 ? 8 : 16);
  const byte = load<u8>(integers + ((within >> 3) << 5) + (lane << 2) + (within & 3)) as i32;
  const code = (byte >> ((within & 4) as i32)) & 15;
  if (format == MXFP4) {
    const scale = reinterpret<f32>((load<u8>(group + lane) as u32) << 23);
    return (i8x16.extract_lane_s(integers_of_mxfp4(i8x16.splat(code as i8)), 0) as f32) * scale + 0;
  }
  if (format == IQ4) {
    const scale = half_value(load<u16>(group + (lane << 1))) * (0.015625 as f32);
    return (i8x16.extract_lane_s(integers_of_iq4(i8x16.splat(code as i8)), 0) as f32) * scale + 0;
  }
  const q = code as f32;
  const zero: f32 = format == INT4 ? 8 : half_value(load<u16>(group + (lane << 1), 16));
  return (q - zero) * half_value(load<u16>(group + (lane << 1))) + 0;
}
