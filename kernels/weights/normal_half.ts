/** Conversions of f16 as weights store it: normal numbers and zero, never subnormal, infinite or NaN. */

/** The smallest f16 that no GPU flushes to zero. */
export const MIN_NORMAL = 2 ** -14;
const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** Bits of the nearest f16, ties to even, saturating; 0 below the normal range. */
export function toNormalHalf(value: number): number {
  float[0] = value;
  const bits = word[0]!;
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477ff000) return sign | 0x7bff;
  if (magnitude < 0x38800000) return sign;
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}

/** Whether every GPU reads this f16 at its value: neither infinity nor NaN, and no subnormal, which GPUs may flush to zero. */
export function isValidHalf(half: number): boolean {
  const exponent = half & 0x7c00;
  return exponent !== 0x7c00 && (exponent !== 0 || (half & 0x3ff) === 0);
}

/** The value of a normal f16 or zero. */
export function fromHalf(half: number): number {
  const magnitude = half & 0x7fff;
  word[0] = magnitude === 0 ? (half & 0x8000) << 16 : ((half & 0x8000) << 16) | ((magnitude << 13) + 0x38000000);
  return float[0]!;
}

/** The value of any f16 but an infinity or NaN. */
export function fromAnyHalf(half: number): number {
  if ((half & 0x7c00) !== 0 || (half & 0x3ff) === 0) return fromHalf(half);
  return (half & 0x8000 ? -1 : 1) * (half & 0x3ff) * 2 ** -24;
}
