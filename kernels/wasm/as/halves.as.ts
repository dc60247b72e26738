/** Conversions of f16 as weights store it: normal numbers and zero, never subnormal, infinite or NaN. */

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

/** Returns the bits of the nearest f16 of four values, each in an i32, rounded like {@link normal_half}. */
// @ts-ignore: decorator
@inline
export function normal_halves(values: v128): v128 {
  const sign = v128.and(i32x4.shr_u(values, 16), i32x4.splat(0x8000));
  const magnitude = v128.and(values, i32x4.splat(0x7fffffff));
  const even = v128.and(i32x4.shr_u(magnitude, 13), i32x4.splat(1));
  const rounded = i32x4.add(i32x4.add(magnitude, i32x4.splat(0xfff)), even);
  const half = i32x4.min_s(i32x4.shr_s(i32x4.sub(rounded, i32x4.splat(0x38000000)), 13), i32x4.splat(0x7bff));
  const isNormal = i32x4.ge_s(magnitude, i32x4.splat(0x38800000));
  return v128.or(sign, v128.and(half, isNormal));
}

/** Returns the f32 values of four normal f16, each in the lower half of an i32. Unlike {@link half_value} wrong for zero. */
// @ts-ignore: decorator
@inline
export function half_values(halves: v128): v128 {
  const sign = i32x4.shl(v128.and(halves, i32x4.splat(0x8000)), 16);
  const magnitude = i32x4.shl(v128.and(halves, i32x4.splat(0x7fff)), 13);
  return v128.or(sign, i32x4.add(magnitude, i32x4.splat(0x38000000)));
}
