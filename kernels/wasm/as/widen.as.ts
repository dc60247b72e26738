/** Widens stored floats (f32, f16, bf16) to f32, a group of 32 at a time. */
import { load4_f16 } from './simd.as';

/** Codes of the type of stored floats; f16 has code 1, which needs no constant. */
const FROM_F32: u32 = 0;
const FROM_BF16: u32 = 2;

/** Returns log2 of a stored value's bytes. */
// @ts-ignore: decorator
@inline
export function shift_of(source: u32): usize {
  return source == FROM_F32 ? 2 : 1;
}

/**
 * Returns the address of `count` values, at most 32, as f32, exact and padded with zeros to 32. The address is `from` for 32 values
 * that are f32 already, else `room` (128 bytes), which is written.
 */
// @ts-ignore: decorator
@inline
export function floats_of(source: u32, from: usize, count: u32, room: usize): usize {
  if (count == 32) {
    if (source == FROM_F32) return from;
    if (source == FROM_BF16) {
      for (let i: usize = 0; i < 64; i += 8) v128.store(room + (i << 1), i32x4.shl(v128.load_ext<u16>(from + i), 16));
      return room;
    }
    let magnitudes = i16x8.splat(0);
    for (let i: usize = 0; i < 64; i += 16) {
      magnitudes = i16x8.max_s(magnitudes, v128.and(v128.load(from + i), i16x8.splat(0x7fff)));
      v128.store(room + (i << 1), load4_f16(from + i));
      v128.store(room + (i << 1), load4_f16(from + i + 8), 16);
    }
    if (!v128.any_true(i16x8.gt_s(magnitudes, i16x8.splat(0x7bff)))) return room;
  }
  one_by_one(source, from, count, room);
  return room;
}

function one_by_one(source: u32, from: usize, count: u32, room: usize): void {
  memory.fill(room, 0, 128);
  for (const end = room + ((count as usize) << 2); room < end; room += 4) {
    if (source == FROM_F32) store<u32>(room, load<u32>(from));
    else if (source == FROM_BF16) store<u32>(room, (load<u16>(from) as u32) << 16);
    else store<u32>(room, bits_of_half(load<u16>(from) as u32));
    from += (1 as usize) << shift_of(source);
  }
}

/** Returns the f32 bits of an f16, exact; a NaN stays a NaN. */
function bits_of_half(half: u32): u32 {
  const magnitude = half & 0x7fff;
  const sign = (half & 0x8000) << 16;
  if (magnitude >= 0x7c00) return sign | 0x7f800000 | ((magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400) return sign | ((magnitude << 13) + 0x38000000);
  return sign | reinterpret<u32>((magnitude as f32) * (0.000000059604644775390625 as f32));
}
