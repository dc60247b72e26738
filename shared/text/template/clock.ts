/** Times as Python's `strftime` writes them, in English. */

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

const DAY_MS = 86_400_000;

function two(value: number): string {
  return String(value).padStart(2, '0');
}

function spaced(value: number): string {
  return String(value).padStart(2, ' ');
}

function hourOfTwelve(at: Date): number {
  return at.getHours() % 12 || 12;
}

/** Returns the day of the year, from 1. */
function dayOfYear(at: Date): number {
  const midnight = Date.UTC(at.getFullYear(), at.getMonth(), at.getDate());
  return Math.round((midnight - Date.UTC(at.getFullYear(), 0, 1)) / DAY_MS) + 1;
}

/**
 * Returns the two-digit week of the year when weeks begin on `firstDay` (0 is Sunday). Days before the year's first such day are in
 * week 00.
 */
function week(at: Date, firstDay: number): string {
  return two(Math.floor((dayOfYear(at) + 6 - ((at.getDay() - firstDay + 7) % 7)) / 7));
}

/** The week by ISO 8601, and its year. */
function isoWeek(at: Date): { year: number; week: number } {
  const thursday = new Date(Date.UTC(at.getFullYear(), at.getMonth(), at.getDate()));
  thursday.setUTCDate(thursday.getUTCDate() + 4 - (thursday.getUTCDay() || 7));
  const year = thursday.getUTCFullYear();
  return { year, week: Math.floor((thursday.getTime() - Date.UTC(year, 0, 1)) / (7 * DAY_MS)) + 1 };
}

const DIRECTIVES: Readonly<Record<string, (at: Date) => string>> = {
  a: (at) => (DAYS[at.getDay()] ?? '').slice(0, 3),
  A: (at) => DAYS[at.getDay()] ?? '',
  b: (at) => (MONTHS[at.getMonth()] ?? '').slice(0, 3),
  B: (at) => MONTHS[at.getMonth()] ?? '',
  c: (at) => strftime(at, '%a %b %e %H:%M:%S %Y'),
  C: (at) => two(Math.floor(at.getFullYear() / 100)),
  d: (at) => two(at.getDate()),
  D: (at) => strftime(at, '%m/%d/%y'),
  e: (at) => spaced(at.getDate()),
  f: (at) => `${String(at.getMilliseconds()).padStart(3, '0')}000`,
  F: (at) => strftime(at, '%Y-%m-%d'),
  G: (at) => String(isoWeek(at).year),
  h: (at) => (MONTHS[at.getMonth()] ?? '').slice(0, 3),
  H: (at) => two(at.getHours()),
  I: (at) => two(hourOfTwelve(at)),
  j: (at) => String(dayOfYear(at)).padStart(3, '0'),
  k: (at) => spaced(at.getHours()),
  l: (at) => spaced(hourOfTwelve(at)),
  m: (at) => two(at.getMonth() + 1),
  M: (at) => two(at.getMinutes()),
  n: () => '\n',
  p: (at) => (at.getHours() < 12 ? 'AM' : 'PM'),
  r: (at) => strftime(at, '%I:%M:%S %p'),
  R: (at) => strftime(at, '%H:%M'),
  s: (at) => String(Math.floor(at.getTime() / 1000)),
  S: (at) => two(at.getSeconds()),
  t: () => '\t',
  T: (at) => strftime(at, '%H:%M:%S'),
  u: (at) => String(at.getDay() || 7),
  U: (at) => week(at, 0),
  V: (at) => two(isoWeek(at).week),
  w: (at) => String(at.getDay()),
  W: (at) => week(at, 1),
  x: (at) => strftime(at, '%m/%d/%y'),
  X: (at) => strftime(at, '%H:%M:%S'),
  y: (at) => two(at.getFullYear() % 100),
  Y: (at) => String(at.getFullYear()),
  // A time without a zone has no name for it, and no offset.
  z: () => '',
  Z: () => '',
  '%': () => '%',
};

/**
 * Formats a time as Python's `strftime` does. Unknown directives stay as they are; the flags `-` (no padding) and `_` (pad with
 * spaces) work as in glibc.
 */
export function strftime(at: Date, format: string): string {
  return format.replace(/%([-_]?)([a-zA-Z%])/g, (whole, flag: string, name: string) => {
    const text = DIRECTIVES[name]?.(at);
    if (text === undefined) return whole;
    const spare = /^[0 ]+(?=.)/.exec(text)?.[0] ?? '';
    if (flag === '-') return text.slice(spare.length);
    return flag === '_' ? ' '.repeat(spare.length) + text.slice(spare.length) : text;
  });
}
