/** Numbers and times as text. Sizes are binary (1 KiB = 1,024 bytes), rates are per second, dashes stand for values that there are not. */

/** Text where there is no value. */
export const NONE = '–';

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const timeOfDay = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const minute = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const day = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });

/** A whole number with separators: 12,345. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : grouped.format(value);
}

/** A number with three significant digits at most: 0.12, 3.4, 56, 1.2 k, 3.4 M. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)} G`;
  if (size >= 1e6) return `${digits(value / 1e6)} M`;
  if (size >= 1e4) return `${digits(value / 1e3)} k`;
  return size >= 100 ? grouped.format(value) : digits(value);
}

function digits(value: number): string {
  const size = Math.abs(value);
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}

/** A size: 512 B, 3.4 MiB. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let left = value;
  while (Math.abs(left) >= 1_024 && unit < units.length - 1) {
    left /= 1_024;
    unit++;
  }
  return `${digits(left)} ${units[unit] ?? ''}`;
}

/** A rate of bytes: 1.2 GB/s, in powers of ten, as links are sold. */
export function bytesPerSecond(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const units = ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'];
  let unit = 0;
  let left = value;
  while (left >= 1_000 && unit < units.length - 1) {
    left /= 1_000;
    unit++;
  }
  return `${digits(left)} ${units[unit] ?? ''}`;
}

/** A duration of milliseconds: 0.4 ms, 12 ms, 3.4 s, 5 min, 2.1 h. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 1_000) return `${digits(ms)} ms`;
  if (ms < 120_000) return `${digits(ms / 1_000)} s`;
  if (ms < 7_200_000) return `${digits(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${digits(ms / 3_600_000)} h` : `${digits(ms / 86_400_000)} days`;
}

/** A share from 0 to 1 as per cent: 87 %, 0.4 %. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** A time of day in the browser's zone: 14:03:07. */
export function clockTime(at: number | null | undefined): string {
  return at === null || at === undefined ? NONE : timeOfDay.format(at);
}

/** A time of day to the minute: 14:03. */
export function clockMinute(at: number | null | undefined): string {
  return at === null || at === undefined ? NONE : minute.format(at);
}

/** A time with its day: 27 Nov 14:03:07. */
export function dayTime(at: number | null | undefined): string {
  return at === null || at === undefined ? NONE : `${day.format(at)} ${timeOfDay.format(at)}`;
}

/** Order of names: numbers in them by their value, so that node-10 is after node-9. */
export const compareNames = new Intl.Collator('en', { numeric: true }).compare;

/** One of two words by number: `plural(1, 'node')` is "1 node". */
export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}
