/** Of the bits of an f16. */
export function halfValue(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const [exponent, mantissa] = [(half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1 + mantissa / 1024) * 2 ** (exponent - 15));
}
