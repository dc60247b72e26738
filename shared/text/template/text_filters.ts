/** Jinja's filters of text, and Hugging Face's `tojson`. */
import { fixed, percentFormat } from './formatting.ts';
import { SPACE } from './lexer.ts';
import { lengthFilter, parseFloatText } from './number_filters.ts';
import { escaped, slicedText } from './operators.ts';
import { indexOf, intOf, linesOf, replaced } from './strings.ts';
import { json, str } from './text.ts';
import {
  Dict,
  type Given,
  Markup,
  PythonError,
  Stream,
  Tuple,
  Undefined,
  isNumber,
  isTrue,
  itemsOf,
  lengthOf,
  listOf,
  quoted,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

/** Hugging Face's `tojson` filter: writes JSON without HTML escapes. @throws PythonError for a value that JSON cannot represent */
export function tojson(value: Value, given: Given): string {
  const [ascii = false, indent = null, separators = null, sortKeys = false] = given.take('tojson', [
    'ensure_ascii',
    'indent',
    'separators',
    'sort_keys',
  ]);
  const level = stringOf(indent) ?? (indent === null ? undefined : ' '.repeat(Math.max(0, indexOf(indent) ?? 0)));
  const [itemSeparator = level === undefined ? ', ' : ',', keySeparator = ': '] =
    separators === null ? [] : listOf(separators).map(str);
  return json(value, {
    isAscii: isTrue(ascii),
    indent: level,
    itemSeparator,
    keySeparator,
    isSorted: isTrue(sortKeys),
  });
}

/**
 * Jinja's `indent` filter: indents all lines but the first (`first` includes it) and skips empty lines unless `blank`. @throws
 * PythonError for a value that is no string
 */
export function indent(value: Value, given: Given): Value {
  const text = textOf(value);
  const [width = 4n, first = false, blank = false] = given.take('indent', ['width', 'first', 'blank']);
  const by = stringOf(width) ?? ' '.repeat(Math.max(0, intOf(width)));
  const lines = linesOf(`${text}\n`);
  const [head = '', ...rest] = lines;
  const indented = rest.map((line) => (line === '' && !isTrue(blank) ? line : by + line));
  const whole = (isTrue(first) ? by : '') + [head, ...indented].join('\n');
  return value instanceof Markup ? new Markup(whole) : whole;
}

/** Returns the text of a value. @throws PythonError for a value that is no string */
function textOf(value: Value): string {
  if (value instanceof Undefined) value.fail();
  const text = stringOf(value);
  if (text === undefined) throw typeError(`unsupported operand type(s) for +=: '${typeName(value)}' and 'str'`);
  return text;
}

/**
 * Jinja's `truncate` filter: cuts text to `length` characters, `end` included, if it is longer than `length` + `leeway`. The cut is at
 * a space unless `killwords`. @throws PythonError
 */
export function truncate(value: Value, given: Given): Value {
  const [size = 255n, killwords = false, end = '...', leeway] = given.take('truncate', [
    'length',
    'killwords',
    'end',
    'leeway',
  ]);
  const [length, ending, slack] = [indexOf(size) ?? 0, str(end), indexOf(leeway) ?? 5];
  const lacking = lengthOf(ending);
  if (length < lacking) throw new PythonError('AssertionError', `expected length >= ${lacking}, got ${length}`);
  if (slack < 0) throw new PythonError('AssertionError', `expected leeway >= 0, got ${slack}`);
  if (lengthFilter(value) <= length + slack) return value;
  const text = textOf(value);
  const kept = slicedText(text, 0, length - lacking);
  const space = kept.lastIndexOf(' ');
  const whole = (isTrue(killwords) || space < 0 ? kept : kept.slice(0, space)) + ending;
  return value instanceof Markup ? new Markup(whole) : whole;
}

/** Jinja's `title` filter: capitalises each word and lowers the rest. Words begin after white space, `-` and opening brackets. */
export function title(text: string): string {
  return text
    .split(new RegExp(`([-${SPACE}({[<]+)`))
    .map((word) => {
      const [head = ''] = word;
      return head.toUpperCase() + word.slice(head.length).toLowerCase();
    })
    .join('');
}

/**
 * Jinja's `filesizeformat` filter: formats a number of bytes, such as `1.5 kB`, or with binary prefixes. @throws PythonError
 * `ValueError` for a value that is no number
 */
export function filesize(value: Value, given: Given): string {
  const [binary = false] = given.take('filesizeformat', ['binary']);
  const bytes = isNumber(value) ? Number(value) : parseFloatText(str(value));
  if (bytes === undefined) throw valueError(`could not convert string to float: ${quoted(str(value))}`);
  const base = isTrue(binary) ? 1024 : 1000;
  if (bytes === 1) return '1 Byte';
  if (bytes < base) return `${Math.trunc(bytes)} Bytes`;
  const prefixes = isTrue(binary)
    ? ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB', 'ZiB', 'YiB']
    : ['kB', 'MB', 'GB', 'TB', 'PB', 'EB', 'ZB', 'YB'];
  const found = prefixes.findIndex((_, i) => bytes < base ** (i + 2));
  const at = found < 0 ? prefixes.length - 1 : found;
  return `${fixed((base * bytes) / base ** (at + 2), 1)} ${prefixes[at]}`;
}

function urlQuoted(value: Value, isQuery: boolean): string {
  const safe = encodeURIComponent(str(value)).replace(
    /[!'()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return isQuery ? safe.replaceAll('%20', '+') : safe.replaceAll('%2F', '/');
}

/**
 * Jinja's `urlencode` filter: percent-encodes a value, or builds a query string from a dict or pairs. @throws PythonError for items
 * that are no pairs
 */
export function urlencode(value: Value): string {
  if (stringOf(value) !== undefined || (!itemsOf(value) && !(value instanceof Stream))) return urlQuoted(value, false);
  const pairs = value instanceof Dict ? value.pairs() : listOf(value);
  return pairs
    .map((pair) => {
      const items = listOf(pair);
      const [key = '', item = ''] = items;
      if (items.length !== 2)
        throw valueError(`${items.length > 2 ? 'too many' : 'not enough'} values to unpack (expected 2)`);
      return `${urlQuoted(key, true)}=${urlQuoted(item, true)}`;
    })
    .join('&');
}

const NAMED_ENTITIES: Readonly<Record<string, string>> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: '\xa0',
};

/** Jinja's `striptags` filter: removes HTML comments and tags, merges white space and decodes numeric and common named entities. */
export function striptags(value: Value): Value {
  const bare = str(value).replace(/<!--[^]*?-->|<[^>]*>/g, '');
  const spaced = bare.replace(new RegExp(`[${SPACE}]+`, 'g'), ' ').replace(/^ | $/g, '');
  return spaced.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (whole, decimal?: string, hex?: string, name?: string) => {
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    if (hex !== undefined) return String.fromCodePoint(parseInt(hex, 16));
    return NAMED_ENTITIES[name ?? ''] ?? whole;
  });
}

/**
 * Jinja's `xmlattr` filter: formats a dict as XML attributes, without None and undefined values. @throws PythonError for a value that
 * is no dict or an invalid attribute name
 */
export function xmlattr(value: Value, given: Given): string {
  const [autospace = true] = given.take('xmlattr', ['autospace']);
  if (!(value instanceof Dict)) throw typeError(`'${typeName(value)}' object has no attribute 'items'`);
  const attributes: string[] = [];
  for (const [key, item] of value.entries()) {
    if (item === null || item instanceof Undefined) continue;
    if (/[\s/>=]/.test(str(key))) throw valueError(`Invalid character in attribute name: ${quoted(str(key))}`);
    attributes.push(`${escaped(key).text}="${escaped(item).text}"`);
  }
  return (isTrue(autospace) && attributes.length > 0 ? ' ' : '') + attributes.join(' ');
}

/**
 * Jinja's `format` filter: printf-style formatting of `text`. @throws PythonError for positional and keyword arguments together, or
 * arguments that do not fit the text
 */
export function format(text: string, given: Given): string {
  if (given.positional.length > 0 && given.named.size > 0) {
    const message = "can't handle positional and keyword arguments at the same time";
    throw new PythonError('FilterArgumentError', message);
  }
  return percentFormat(text, given.named.size > 0 ? new Dict(given.named) : new Tuple(given.positional));
}

/**
 * Jinja's `replace` filter: replaces the first `count` occurrences, or all without `count`. @throws PythonError for missing or wrong
 * arguments
 */
export function replace(value: Value, given: Given): string {
  const [old = null, by = null, most = null] = given.take('replace', ['old', 'new', 'count'], 2);
  return replaced(str(value), str(old), str(by), indexOf(most) ?? -1);
}
