/** The formats of strings that are enforced, as regular expressions whose every match is valid, and those that say nothing of the text. */

const octet = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const ipv4 = `${octet}(?:\\.${octet}){3}`;
const group = '[0-9a-fA-F]{1,4}';
const ipv6 = [
  `(?:${group}:){7}${group}`,
  `(?:${group}:){1,7}:`,
  ...[1, 2, 3, 4, 5, 6].map((after) => `(?:${group}:){1,${7 - after}}(?::${group}){${after}}`),
  `:(?::${group}){1,7}`,
  '::',
  `(?:${group}:){6}${ipv4}`,
  `::(?:ffff:)?${ipv4}`,
].join('|');
/** A label of a host name, of any length, and a short one: each counted character costs the compiler of masks some 10 ms. */
const label = '[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*';
const shortLabel = '[a-z0-9](?:[a-z0-9-]{0,8}[a-z0-9])?';
const host = `${label}(?:\\.${label})*`;
/** Days by length of the month, and the last of February in leap years. */
const date = [
  '\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))',
  '(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29',
].join('|');
const time = '(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)';
const hex = '[0-9a-fA-F]';
const path = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
const tail = `(?:\\?(?:${path}|[/?])*)?(?:#(?:${path}|[/?])*)?`;
const uri = `[a-zA-Z][a-zA-Z0-9+.-]*://${host}(?::\\d{1,5})?(?:/${path}*)*${tail}`;
const numbered = (unit: string): string => `\\d{1,6}${unit}`;
const ofTime = `T(?:${numbered('H')}(?:${numbered('M')})?(?:${numbered('S')})?|${numbered('M')}(?:${numbered('S')})?|${numbered('S')})`;
const ofDate = `(?:${numbered('Y')}(?:${numbered('M')})?(?:${numbered('D')})?|${numbered('M')}(?:${numbered('D')})?|${numbered('D')})`;
const pointer = '(?:/(?:[a-zA-Z0-9_. -]|~[01])*)*';

/** Regular expressions of formats, by name. */
export const formats: ReadonlyMap<string, string> = new Map([
  ['date', date],
  ['time', time],
  ['date-time', `(?:${date})T${time}`],
  ['iso-time', time],
  ['iso-date-time', `(?:${date})T${time}`],
  ['duration', `P(?:${ofDate}(?:${ofTime})?|${ofTime}|${numbered('W')})`],
  ['email', `[a-zA-Z0-9_+-]+(?:\\.[a-zA-Z0-9_+-]+)*@${host}\\.[a-zA-Z]{2,6}`],
  ['hostname', `${shortLabel}(?:\\.${shortLabel}){0,2}`],
  ['ipv4', ipv4],
  ['ipv6', ipv6],
  ['uuid', `${hex}{8}-${hex}{4}-${hex}{4}-${hex}{4}-${hex}{12}`],
  ['uri', uri],
  ['url', `https?://[a-z0-9]+(?:\\.[a-z0-9]+)*\\.[a-z]{2,6}(?:(?:/${path}*)+${tail})?`],
  ['uri-reference', `(?:${uri}|(?:/${path}+)*/?${tail})`],
  ['uri-template', '(?:/(?:[a-zA-Z0-9_-]+|\\{[a-zA-Z0-9_]+\\}))+'],
  ['json-pointer', pointer],
  ['relative-json-pointer', `(?:0|[1-9]\\d{0,3})(?:#|${pointer})`],
  ['byte', '(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?'],
]);

/** Short forms of formats whose length has no bound, for strings with a `maxLength`. */
export const shortFormats: ReadonlyMap<string, string> = new Map([
  ['email', `[a-z0-9_+-]{1,12}@${shortLabel}\\.[a-z]{2,6}`],
  ['uri', `https?://${shortLabel}\\.[a-z]{2,6}(?:/[a-zA-Z0-9_-]{1,12}){0,2}`],
  ['url', `https?://[a-z0-9]{1,12}\\.[a-z]{2,6}(?:/[a-zA-Z0-9_-]{1,12}){0,2}`],
  ['uri-reference', '(?:/[a-zA-Z0-9_-]{1,12}){1,3}'],
]);

/** Formats that any string has, or any number: nothing is left to enforce. */
export const openFormats: ReadonlySet<string> = new Set(['password', 'binary', 'float', 'double']);

/** Ranges of the formats of integers. */
export const integerFormats: ReadonlyMap<string, readonly [min: number, max: number]> = new Map([
  ['int32', [-(2 ** 31), 2 ** 31 - 1]],
  ['int64', [-(2 ** 63), 2 ** 63 - 1024]],
]);
