/** f16 as weights have it: normal, or zero. */

/** Bits of the nearest f16, ties to even, saturating; 0 below the normal range. */
// @ts-ignore: decorator
@inline
export function normal_half(value: f32): u16 {
  const bits = reinterpret<u32>(value);
  const sign = (bits >> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477ff000) return (sign | 0x7bff) as u16;
  if (magnitude < 0x38800000) return sign as u16;
  const rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (sign | ((rounded - 0x38000000) >> 13)) as u16;
}

/** The value of a normal f16 or zero. */
// @ts-ignore: decorator
@inline
export function half_value(half: u16): f32 {
  const magnitude = (half as u32) & 0x7fff;
  const sign = ((half as u32) & 0x8000) << 16;
  return reinterpret<f32>(magnitude == 0 ? sign : sign | ((magnitude << 13) + 0x38000000));
}
