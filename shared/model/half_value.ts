/** Returns the value of an f16 from its bits. */
export function halfValue(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const [exponent, mantissa] = [(half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1 + mantissa / 1024) * 2 ** (exponent - 15));
}

/** Returns the bits of the f16 nearest to a value, ties to even; infinity from 65,520 on (the largest f16 is 65,504). */
export function halfBits(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (Number.isNaN(magnitude)) return 0x7e00;
  if (magnitude >= 65_520) return sign | 0x7c00;
  let exponent = Math.max(-14, Math.floor(Math.log2(magnitude)));
  // The logarithm of a value just below a power of two may round up to it.
  if (exponent > -14 && magnitude < 2 ** exponent) exponent--;
  const units = nearestEven(magnitude / 2 ** (exponent - 10));
  // Subnormal values have less than 1,024 units; a mantissa that rounds up to 2,048 carries into the exponent.
  return sign | (units + ((exponent + 14) << 10));
}

function nearestEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
