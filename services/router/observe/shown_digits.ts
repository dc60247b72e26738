/** Numbers with as many digits as people read: fewer changes to send. */

const DIGITS = 3;

/** Returns the value with all numbers in it rounded to three significant digits; texts and times of day stay as they are. */
export function shownDigits(value: unknown): unknown {
  if (typeof value === 'number') return Number.isInteger(value) && Math.abs(value) < 1_000 ? value : rounded(value);
  if (Array.isArray(value)) return value.map(shownDigits);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, shownDigits(of)]));
}

function rounded(value: number): number {
  return Number(value.toPrecision(DIGITS));
}
