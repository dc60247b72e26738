/** The methods of Python's `str` that only depend on the text. */
import { padded } from './formatting.ts';
import { SPACE } from './lexer.ts';
import { slicedText } from './operators.ts';
import type { Given } from './values.ts';
import {
  Tuple,
  isNumber,
  charactersOf,
  iterate,
  lengthOf,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

type Method = (text: string, given: Given) => Value;

const LEADING = new RegExp(`^[${SPACE}]+`);
const TRAILING = new RegExp(`[${SPACE}]+$`);
const WORD = new RegExp(`[^${SPACE}]+`, 'g');
const LINE_ENDS = '\n\r\v\f\x1c-\x1e\x85\u2028\u2029';
/** Matches one line ending, as `splitlines` recognises them. */
const LINE = new RegExp(`\r\n|[${LINE_ENDS}]`, 'g');
/** Digits that are no decimals: superscripts, subscripts and those in circles, in brackets and with full stops. */
const DIGIT =
  /^[\p{Nd}\xb2\xb3\xb9\u1369-\u1371\u19da\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490\u24ea\u24f5-\u24fd\u24ff\u2776-\u277e\u2780-\u2788\u278a-\u2792\u{10a40}-\u{10a43}\u{1f100}-\u{1f10a}]+$/u;
const NUMERAL = '〇一七万三九二五亿伍億兆八六六十千四壱壹弌弍弎弐廿卅卌叁参參叄柒百玖捌肆仟伯佰陌陆陸零';
const NUMERIC = new RegExp(`^[\\p{N}${NUMERAL}]+$`, 'u');
const ALPHABETIC = /^\p{L}+$/u;

function textOf(value: Value | undefined, what: string): string {
  const text = value === undefined ? undefined : stringOf(value);
  if (text === undefined) throw typeError(`${what} must be str, not ${typeName(value ?? null)}`);
  return text;
}

/** Returns an optional int argument; undefined when it is absent or None. @throws PythonError `TypeError` for any other value */
export function indexOf(value: Value | undefined): number | undefined {
  return value === undefined || value === null ? undefined : intOf(value);
}

/** Returns an int or bool as a number. @throws PythonError `TypeError` for any other value */
export function intOf(value: Value): number {
  if (typeof value !== 'bigint' && typeof value !== 'boolean') {
    throw typeError(`'${typeName(value)}' object cannot be interpreted as an integer`);
  }
  return Number(value);
}

/**
 * Python's `strip`, `lstrip` and `rstrip`: removes white space, or any of `characters`, from the chosen sides. @throws PythonError
 * `TypeError` when `characters` is no string
 */
export function strip(text: string, characters: Value | undefined, sides: 'left' | 'right' | 'both'): string {
  if (characters === undefined || characters === null) {
    const left = sides === 'right' ? text : text.replace(LEADING, '');
    return sides === 'left' ? left : left.replace(TRAILING, '');
  }
  const set = new Set(textOf(characters, 'strip arg'));
  const all = charactersOf(text);
  let [from, to] = [0, all.length];
  while (sides !== 'right' && from < to && set.has(all[from] ?? '')) from++;
  while (sides !== 'left' && to > from && set.has(all[to - 1] ?? '')) to--;
  return all.slice(from, to).join('');
}

/** Python's `str.capitalize`: the first character in title case, the rest in lower case. */
export function capitalized(text: string): string {
  const [first = ''] = text;
  return titled(first) + text.slice(first.length).toLowerCase();
}

function titled(character: string): string {
  const [first = '', ...rest] = character.toUpperCase();
  return first + rest.join('').toLowerCase();
}

function titleCase(text: string): string {
  return text.replace(/[\p{Uppercase}\p{Lowercase}\p{Lt}]+/gu, (word) => capitalized(word));
}

function split(text: string, given: Given): string[] {
  const [separator, most] = given.take('split', ['sep', 'maxsplit']);
  const limit = indexOf(most) ?? -1;
  if (separator === undefined || separator === null) return splitWords(text, limit);
  return splitBy(text, textOf(separator, 'must be str or None, not'), limit);
}

function splitBy(text: string, separator: string, limit: number): string[] {
  if (separator === '') throw valueError('empty separator');
  const parts = text.split(separator);
  if (limit < 0 || parts.length <= limit + 1) return parts;
  return [...parts.slice(0, limit), parts.slice(limit).join(separator)];
}

function splitWords(text: string, limit: number): string[] {
  const parts: string[] = [];
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (limit >= 0 && parts.length === limit) return [...parts, text.slice(index)];
    parts.push(word);
  }
  return parts;
}

function splitFromRight(text: string, given: Given): string[] {
  const [separator, most] = given.take('rsplit', ['sep', 'maxsplit']);
  const limit = indexOf(most) ?? -1;
  if (separator === undefined || separator === null) return splitWordsFromRight(text, limit);
  const by = textOf(separator, 'must be str or None, not');
  const parts = splitBy(text, by, -1);
  if (limit < 0 || parts.length <= limit + 1) return parts;
  return [parts.slice(0, parts.length - limit).join(by), ...parts.slice(parts.length - limit)];
}

function splitWordsFromRight(text: string, limit: number): string[] {
  const words = [...text.matchAll(WORD)];
  if (limit < 0 || words.length <= limit) return words.map(([word]) => word);
  const last = words[words.length - limit - 1];
  const first = text.slice(0, (last?.index ?? 0) + (last?.[0].length ?? 0));
  return [first, ...words.slice(words.length - limit).map(([word]) => word)];
}

function partition(text: string, given: Given, isLast: boolean): Tuple {
  const separator = textOf(given.take('partition', ['sep'], 1)[0], 'must be str');
  if (separator === '') throw valueError('empty separator');
  const at = isLast ? text.lastIndexOf(separator) : text.indexOf(separator);
  if (at < 0) return new Tuple(isLast ? ['', '', text] : [text, '', '']);
  return new Tuple([text.slice(0, at), separator, text.slice(at + separator.length)]);
}

/** Returns the part of a text between `start` and `stop`, and its offset in characters; undefined when the range is not in the text. */
function part(
  text: string,
  start: Value | undefined,
  stop: Value | undefined,
): { text: string; from: number } | undefined {
  const length = lengthOf(text);
  const place = (index: number): number => Math.max(0, index < 0 ? index + length : index);
  const from = place(indexOf(start) ?? 0);
  const to = Math.min(place(indexOf(stop) ?? length), length);
  return from > length || from > to ? undefined : { text: slicedText(text, from, to), from };
}

function find(text: string, given: Given, callee: string, isLast: boolean): number {
  const [sub, start, stop] = given.take(callee, ['sub', 'start', 'end'], 1);
  const wanted = textOf(sub, 'must be str, not');
  const within = part(text, start, stop);
  if (!within) return -1;
  const at = isLast ? within.text.lastIndexOf(wanted) : within.text.indexOf(wanted);
  return at < 0 ? -1 : within.from + lengthOf(within.text.slice(0, at));
}

function found(text: string, given: Given, callee: string, isLast: boolean): bigint {
  const at = find(text, given, callee, isLast);
  if (at < 0) throw valueError('substring not found');
  return BigInt(at);
}

function count(text: string, given: Given): bigint {
  const [sub, start, stop] = given.take('count', ['sub', 'start', 'end'], 1);
  const wanted = textOf(sub, 'must be str, not');
  const within = part(text, start, stop);
  if (!within) return 0n;
  return BigInt(wanted === '' ? lengthOf(within.text) + 1 : within.text.split(wanted).length - 1);
}

/**
 * Python's `str.replace`: replaces the first `most` occurrences of `old`, or all when `most` is negative. An empty `old` matches
 * between all characters.
 */
export function replaced(text: string, old: string, by: string, most = -1): string {
  if (most < 0 && old !== '') return text.replaceAll(old, () => by);
  const parts = old === '' ? ['', ...charactersOf(text), ''] : text.split(old);
  const kept = most < 0 ? parts.length : most;
  if (old !== '') return parts.reduce((whole, next, i) => whole + (i <= kept ? by : old) + next);
  return parts.reduce((whole, next, i) => whole + (i <= kept ? by : '') + next);
}

function affix(text: string, given: Given, callee: 'startswith' | 'endswith'): boolean {
  const [wanted = null, start, stop] = given.take(callee, ['prefix', 'start', 'end'], 1);
  const options = wanted instanceof Tuple ? wanted.items : [wanted];
  const within = part(text, start, stop);
  return options.some((option) => {
    const string = stringOf(option);
    if (string === undefined) {
      throw typeError(`${callee} first arg must be str or a tuple of str, not ${typeName(wanted)}`);
    }
    if (!within) return false;
    return callee === 'startswith' ? within.text.startsWith(string) : within.text.endsWith(string);
  });
}

function join(text: string, given: Given): string {
  const [items = null] = given.take('join', ['iterable'], 1);
  const parts: string[] = [];
  if (items === null || isNumber(items)) throw typeError('can only join an iterable');
  for (const item of iterate(items)) {
    const string = stringOf(item);
    if (string === undefined) {
      throw typeError(`sequence item ${parts.length}: expected str instance, ${typeName(item)} found`);
    }
    parts.push(string);
  }
  return parts.join(text);
}

/** Python's `str.splitlines`: returns the lines, with their line endings when `keepsEnds` is set. */
export function linesOf(text: string, keepsEnds = false): string[] {
  const lines: string[] = [];
  let at = 0;
  for (const { 0: end, index } of text.matchAll(LINE)) {
    lines.push(text.slice(at, keepsEnds ? index + end.length : index));
    at = index + end.length;
  }
  return at < text.length ? [...lines, text.slice(at)] : lines;
}

function expandTabs(text: string, size: number): string {
  let column = 0;
  return charactersOf(text)
    .map((c) => {
      if (c !== '\t') {
        column = c === '\n' || c === '\r' ? 0 : column + 1;
        return c;
      }
      const spaces = size > 0 ? size - (column % size) : 0;
      column += spaces;
      return ' '.repeat(spaces);
    })
    .join('');
}

function zeroFill(text: string, width: number): string {
  const sign = /^[-+]/.exec(text)?.[0] ?? '';
  return sign + padded(text.slice(sign.length), width - sign.length, '>', '0');
}

function aligned(align: string, callee: string): Method {
  return (text, given) => {
    const [width, fill] = given.take(callee, ['width', 'fillchar'], 1);
    const size = intOf(width ?? null);
    const by = fill === undefined ? ' ' : textOf(fill, 'The fill character');
    if (lengthOf(by) !== 1) throw typeError('The fill character must be exactly one character long');
    return align === '^' ? centered(text, size, by) : padded(text, size, align, by);
  };
}

/**
 * Python's `str.center`, with `width` in characters. When the padding is odd, the extra character goes to the left of an odd width and
 * to the right of an even one.
 */
export function centered(text: string, width: number, fill = ' '): string {
  const lacking = Math.max(0, width - lengthOf(text));
  const left = Math.floor(lacking / 2) + (lacking & width & 1);
  return fill.repeat(left) + text + fill.repeat(lacking - left);
}

function swapped(text: string): string {
  return text.replace(/[\p{Uppercase}]|[\p{Lowercase}]/gu, (c) =>
    c === c.toLowerCase() ? c.toUpperCase() : c.toLowerCase(),
  );
}

function isTitled(text: string): boolean {
  const words = text.match(/[\p{Lu}\p{Ll}\p{Lt}]+/gu) ?? [];
  return words.length > 0 && words.every((word) => /^[\p{Lu}\p{Lt}]\p{Ll}*$/u.test(word));
}

function folded(text: string): string {
  return text.replace(/[^ıİ]/gu, (c) => c.toUpperCase().toLowerCase());
}

/** Python's `str.isupper`: whether the text has upper-case characters and no lower-case or title-case ones. */
export function isUpper(text: string): boolean {
  return /\p{Uppercase}/u.test(text) && !/[\p{Lowercase}\p{Lt}]/u.test(text);
}

/** Python's `str.islower`: whether the text has lower-case characters and no upper-case or title-case ones. */
export function isLower(text: string): boolean {
  return /\p{Lowercase}/u.test(text) && !/[\p{Uppercase}\p{Lt}]/u.test(text);
}

const plain =
  (change: (text: string) => Value, callee: string): Method =>
  (text, given) => {
    given.take(callee, []);
    return change(text);
  };

const stripping =
  (sides: 'left' | 'right' | 'both', callee: string): Method =>
  (text, given) =>
    strip(text, given.take(callee, ['chars'])[0], sides);

/** Creates a method that tests whether the whole text matches `rule`. */
const consisting = (rule: RegExp, callee: string): Method => plain((text) => rule.test(text), callee);

/** Methods of Python's `str` by name. `format` is not among these, because it reads attributes of its arguments. */
export const STRING_METHODS: Readonly<Record<string, Method>> = {
  capitalize: plain(capitalized, 'capitalize'),
  casefold: plain(folded, 'casefold'),
  center: aligned('^', 'center'),
  count,
  endswith: (text, given) => affix(text, given, 'endswith'),
  expandtabs: (text, given) => expandTabs(text, indexOf(given.take('expandtabs', ['tabsize'])[0]) ?? 8),
  find: (text, given) => BigInt(find(text, given, 'find', false)),
  index: (text, given) => found(text, given, 'index', false),
  isalnum: consisting(new RegExp(`^(?:\\p{L}|\\p{N}|[${NUMERAL}])+$`, 'u'), 'isalnum'),
  isalpha: consisting(ALPHABETIC, 'isalpha'),
  isascii: plain((text) => charactersOf(text).every((c) => c < '\x80'), 'isascii'),
  isdecimal: consisting(/^\p{Nd}+$/u, 'isdecimal'),
  isdigit: consisting(DIGIT, 'isdigit'),
  isidentifier: consisting(/^[\p{ID_Start}_]\p{ID_Continue}*$/u, 'isidentifier'),
  islower: plain(isLower, 'islower'),
  isnumeric: consisting(NUMERIC, 'isnumeric'),
  isprintable: plain((text) => !/[\p{C}\p{Z}]/u.test(text.replaceAll(' ', '')), 'isprintable'),
  isspace: consisting(new RegExp(`^[${SPACE}]+$`), 'isspace'),
  istitle: plain(isTitled, 'istitle'),
  isupper: plain(isUpper, 'isupper'),
  join,
  ljust: aligned('<', 'ljust'),
  lower: plain((text) => text.toLowerCase(), 'lower'),
  lstrip: stripping('left', 'lstrip'),
  partition: (text, given) => partition(text, given, false),
  removeprefix: (text, given) => {
    const prefix = textOf(given.take('removeprefix', ['prefix'], 1)[0], 'removeprefix() argument');
    return text.startsWith(prefix) ? text.slice(prefix.length) : text;
  },
  removesuffix: (text, given) => {
    const suffix = textOf(given.take('removesuffix', ['suffix'], 1)[0], 'removesuffix() argument');
    return suffix !== '' && text.endsWith(suffix) ? text.slice(0, -suffix.length) : text;
  },
  replace: (text, given) => {
    const [old, by, most] = given.take('replace', ['old', 'new', 'count'], 2);
    return replaced(text, textOf(old, 'replace() argument 1'), textOf(by, 'replace() argument 2'), indexOf(most) ?? -1);
  },
  rfind: (text, given) => BigInt(find(text, given, 'rfind', true)),
  rindex: (text, given) => found(text, given, 'rindex', true),
  rjust: aligned('>', 'rjust'),
  rpartition: (text, given) => partition(text, given, true),
  rsplit: splitFromRight,
  rstrip: stripping('right', 'rstrip'),
  split,
  splitlines: (text, given) => linesOf(text, intOf(given.take('splitlines', ['keepends'])[0] ?? false) !== 0),
  startswith: (text, given) => affix(text, given, 'startswith'),
  strip: stripping('both', 'strip'),
  swapcase: plain(swapped, 'swapcase'),
  title: plain(titleCase, 'title'),
  upper: plain((text) => text.toUpperCase(), 'upper'),
  zfill: (text, given) => zeroFill(text, intOf(given.take('zfill', ['width'], 1)[0] ?? null)),
};
