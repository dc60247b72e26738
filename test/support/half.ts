/** The value of an f16, by its definition: for tests, against what the code under test does with bits. */
export function halfValue(bits: number): number {
  const [exponent, mantissa] = [(bits >> 10) & 31, bits & 1_023];
  const magnitude = exponent === 0 ? mantissa * 2 ** -24 : (1 + mantissa / 1_024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}
