/** Numbers of a report as text for people. */

/** Returns a share from 0 to 1 in percent, with one decimal or `numDecimals` of them. */
export function percent(share: number, numDecimals = 1): string {
  return Number.isFinite(share) ? `${(100 * share).toFixed(numDecimals)} %` : '–';
}

/** Returns a rate in requests per second. */
export function rateText(perSecond: number): string {
  return `${rounded(perSecond)} requests/s`;
}

/** Returns milliseconds as text in ms or s. */
export function secondsText(ms: number): string {
  if (!Number.isFinite(ms)) return '–';
  return ms >= 1_000 ? `${rounded(ms / 1_000)} s` : `${rounded(ms)} ms`;
}

/** Returns bytes as text in MB, GB or TB (powers of 1,000). */
export function bytesText(bytes: number): string {
  if (!Number.isFinite(bytes)) return '–';
  const [unit, size] = bytes >= 1e12 ? ['TB', 1e12] : bytes >= 1e9 ? ['GB', 1e9] : ['MB', 1e6];
  return `${rounded(bytes / size)} ${unit}`;
}

/** Returns a number with three significant digits, and none less before the point. */
export function rounded(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const digits = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString('en', { maximumFractionDigits: Math.min(digits, 6) });
}
