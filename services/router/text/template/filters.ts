/** Jinja's filters, and Hugging Face's `tojson`. */
import { getItem, getOnlyAttribute } from './attributes.ts';
import { fixed, percentFormat } from './formatting.ts';
import { arithmetic, escaped, float, sliced, slicedText } from './operators.ts';
import { SPACE } from './lexer.ts';
import { capitalized, centered, indexOf, intOf, linesOf, replaced, strip } from './strings.ts';
import { TESTS } from './tests.ts';
import { json, str } from './text.ts';
import {
  Dict,
  Given,
  Markup,
  PythonError,
  Range,
  Stream,
  Tuple,
  Undefined,
  charactersOf,
  equals,
  isLess,
  isList,
  isNumber,
  isTrue,
  iterate,
  itemsOf,
  lengthOf,
  listOf,
  numberOf,
  quoted,
  sizeOf,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

type Filter = (value: Value, given: Given) => Value;

/** Applies a filter by its name. @throws PythonError where there is none */
export function applyFilter(name: string, value: Value, given: Given): Value {
  const filter = Object.hasOwn(FILTERS, name) ? FILTERS[name] : undefined;
  if (!filter) throw new PythonError('TemplateRuntimeError', `No filter named ${quoted(name)} found.`);
  return filter(value, given);
}

/** @throws PythonError where there is no such test */
export function applyTest(name: string, value: Value, given: Given): boolean {
  const named = new Map<string, () => boolean>([
    ['filter', () => typeof value === 'string' && Object.hasOwn(FILTERS, value)],
    ['test', () => typeof value === 'string' && isTest(value)],
  ]).get(name);
  if (named) return named();
  const test = Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
  if (!test) throw new PythonError('TemplateRuntimeError', `No test named ${quoted(name)} found.`);
  return test(value, given);
}

export function isFilter(name: string): boolean {
  return Object.hasOwn(FILTERS, name);
}

export function isTest(name: string): boolean {
  return Object.hasOwn(TESTS, name) || name === 'filter' || name === 'test';
}

/** A filter of text, which leaves markup markup. */
function ofText(change: (text: string, given: Given) => string): Filter {
  return (value, given) => {
    const text = change(str(value), given);
    return value instanceof Markup ? new Markup(text) : text;
  };
}

/** A filter without arguments. */
function plain(callee: string, change: (value: Value) => Value): Filter {
  return (value, given) => {
    given.take(callee, []);
    return change(value);
  };
}

/** One of text. */
function plainText(callee: string, change: (text: string) => string): Filter {
  return ofText((text, given) => {
    given.take(callee, []);
    return change(text);
  });
}

function lengthFilter(value: Value): bigint {
  const size = sizeOf(value);
  if (size === undefined) throw typeError(`object of type '${typeName(value)}' has no len()`);
  return BigInt(size);
}

/** What an attribute of this path gives of an item. Numbers in it are indices. */
function getter(path: Value, otherwise: Value = null): (item: Value) => Value {
  const parts = partsOf(path);
  return (item) =>
    parts.reduce((value: Value, part) => {
      const found = getItem(value, part);
      return otherwise !== null && found instanceof Undefined ? otherwise : found;
    }, item);
}

function partsOf(path: Value): readonly Value[] {
  if (path === null) return [];
  if (typeof path !== 'string') return [path];
  return path.split('.').map((part) => (/^\p{Nd}+$/u.test(part) ? BigInt(part) : part));
}

function ignoringCase(value: Value): Value {
  const text = stringOf(value);
  return text === undefined ? value : text.toLowerCase();
}

function keyGetter(path: Value, isCaseSensitive: boolean, otherwise: Value = null): (item: Value) => Value {
  const get = getter(path, otherwise);
  return isCaseSensitive ? get : (item) => ignoringCase(get(item));
}

/** Whether a sort goes backwards: Python wants an int. */
function isReverse(value: Value): boolean {
  return intOf(value) !== 0;
}

/** Keeps the order of what has none, either way. */
function sorted(items: readonly Value[], keyOf: (item: Value) => Value, isBackward: boolean): Value[] {
  const keyed = items.map((item) => ({ item, key: keyOf(item) }));
  keyed.sort(({ key: a }, { key: b }) => {
    const order = isLess(a, b) ? -1 : isLess(b, a) ? 1 : 0;
    return isBackward ? -order : order;
  });
  return keyed.map(({ item }) => item);
}

function sortFilter(value: Value, given: Given): Value {
  const [reverse = false, caseSensitive = false, attribute = null] = given.take('sort', [
    'reverse',
    'case_sensitive',
    'attribute',
  ]);
  const paths = typeof attribute === 'string' ? attribute.split(',') : [attribute];
  const getters = paths.map((path) => keyGetter(path, isTrue(caseSensitive)));
  return sorted(listOf(value), (item) => getters.map((get) => get(item)), isReverse(reverse));
}

function dictsort(value: Value, given: Given): Value {
  const [caseSensitive = false, by = 'key', reverse = false] = given.take('dictsort', [
    'case_sensitive',
    'by',
    'reverse',
  ]);
  if (by !== 'key' && by !== 'value') {
    throw new PythonError('FilterArgumentError', 'You can only sort by either "key" or "value"');
  }
  if (!(value instanceof Dict)) {
    if (value instanceof Undefined) value.fail();
    throw new PythonError('AttributeError', `'${typeName(value)}' object has no attribute 'items'`);
  }
  const get = keyGetter(by === 'key' ? 0n : 1n, isTrue(caseSensitive));
  return sorted(value.pairs(), get, isReverse(reverse));
}

function groupby(value: Value, given: Given): Value {
  const [attribute = null, otherwise = null, caseSensitive = false] = given.take(
    'groupby',
    ['attribute', 'default', 'case_sensitive'],
    1,
  );
  const key = keyGetter(attribute, isTrue(caseSensitive), otherwise);
  const groups: { key: Value; items: Value[] }[] = [];
  for (const item of sorted(listOf(value), key, false)) {
    const group = groups.at(-1);
    if (group && equals(group.key, key(item))) group.items.push(item);
    else groups.push({ key: key(item), items: [item] });
  }
  const shown = getter(attribute, otherwise);
  return groups.map(({ items }) => new Tuple([shown(items[0] ?? null), items], ['grouper', 'list']));
}

function* uniqueItems(value: Value, given: Given): Generator<Value> {
  const [caseSensitive = false, attribute = null] = given.take('unique', ['case_sensitive', 'attribute']);
  const key = keyGetter(attribute, isTrue(caseSensitive));
  const seen = new Dict();
  for (const item of iterate(value)) {
    if (seen.has(key(item))) continue;
    seen.set(key(item), null);
    yield item;
  }
}

function extreme(value: Value, given: Given, callee: 'min' | 'max'): Value {
  const [caseSensitive = false, attribute = null] = given.take(callee, ['case_sensitive', 'attribute']);
  const key = keyGetter(attribute, isTrue(caseSensitive));
  const [first, ...others] = listOf(value);
  if (first === undefined) return new Undefined(() => 'No aggregated item, sequence was empty.');
  return others.reduce<Value>((best, item) => {
    const isBetter = callee === 'min' ? isLess(key(item), key(best)) : isLess(key(best), key(item));
    return isBetter ? item : best;
  }, first);
}

function* mapped(value: Value, given: Given): Generator<Value> {
  if (!isTrue(value)) return;
  const change = changeOf(given);
  for (const item of iterate(value)) yield change(item);
}

function changeOf(given: Given): (item: Value) => Value {
  const attribute = given.named.get('attribute');
  if (given.positional.length === 0 && attribute !== undefined) {
    const other = [...given.named.keys()].find((name) => name !== 'attribute' && name !== 'default');
    if (other === undefined) return getter(attribute, given.named.get('default') ?? null);
    throw new PythonError('FilterArgumentError', `Unexpected keyword argument ${quoted(other)}`);
  }
  const [name, ...others] = given.positional;
  if (name === undefined) throw new PythonError('FilterArgumentError', 'map requires a filter argument');
  return (item) => applyFilter(str(name), item, new Given(others, given.named));
}

function* selected(value: Value, given: Given, isKept: boolean, isOfAttribute: boolean): Generator<Value> {
  if (!isTrue(value)) return;
  const [attribute = null, ...rest] = isOfAttribute ? given.positional : [null, ...given.positional];
  if (isOfAttribute && given.positional.length === 0) {
    throw new PythonError('FilterArgumentError', 'Missing parameter for attribute name');
  }
  const get = getter(attribute);
  const [name, ...others] = rest;
  const test = new Given(others, given.named);
  for (const item of iterate(value)) {
    const judged = get(item);
    if ((name === undefined ? isTrue(judged) : applyTest(str(name), judged, test)) === isKept) yield item;
  }
}

const selecting =
  (isKept: boolean, isOfAttribute: boolean): Filter =>
  (value, given) =>
    new Stream('generator', selected(value, given, isKept, isOfAttribute), 'select_or_reject');

function* batched(value: Value, given: Given): Generator<Value> {
  const [count, fill = null] = given.take('batch', ['linecount', 'fill_with'], 1);
  const size = indexOf(count) ?? 0;
  let batch: Value[] = [];
  for (const item of iterate(value)) {
    if (batch.length === size) {
      yield batch;
      batch = [];
    }
    batch.push(item);
  }
  if (batch.length === 0) return;
  yield fill === null ? batch : [...batch, ...Array.from({ length: size - batch.length }, () => fill)];
}

function* slices(value: Value, given: Given): Generator<Value> {
  const [count, fill = null] = given.take('slice', ['slices', 'fill_with'], 1);
  const items = listOf(value);
  const number = indexOf(count) ?? 0;
  if (number === 0) throw new PythonError('ZeroDivisionError', 'integer division or modulo by zero');
  const longer = items.length % number;
  let at = 0;
  for (let i = 0; i < number; i++) {
    const size = Math.floor(items.length / number) + (i < longer ? 1 : 0);
    const slice = items.slice(at, at + size);
    at += size;
    yield fill !== null && i >= longer ? [...slice, fill] : slice;
  }
}

function sum(value: Value, given: Given): Value {
  const [attribute = null, start = 0n] = given.take('sum', ['attribute', 'start']);
  if (stringOf(start) !== undefined) throw typeError("sum() can't sum strings [use ''.join(seq) instead]");
  const get = getter(attribute);
  return listOf(value).reduce<Value>((total, item) => arithmetic('+', total, get(item)), start);
}

function join(value: Value, given: Given): Value {
  const [separator = '', attribute = null] = given.take('join', ['d', 'attribute']);
  const get = getter(attribute);
  return listOf(value)
    .map((item) => str(get(item)))
    .join(str(separator));
}

function reverse(value: Value): Value {
  const text = stringOf(value);
  if (text !== undefined) return sliced(value, undefined, undefined, -1n) ?? '';
  if (value instanceof Stream) return listOf(value).reverse();
  const items = itemsOf(value);
  if (!items) throw new PythonError('FilterArgumentError', 'argument must be iterable');
  if (value instanceof Undefined) return new Stream('reversed', []);
  const kind = isListValue(value) ? 'list_' : value instanceof Range ? 'range_' : value instanceof Dict ? 'dict_' : '';
  const type =
    value instanceof Tuple ? 'reversed' : `${kind}${value instanceof Dict ? 'reversekeyiterator' : 'reverseiterator'}`;
  return new Stream(type.replace('range_reverseiterator', 'range_iterator'), [...items].reverse());
}

function isListValue(value: Value): value is readonly Value[] {
  return value !== null && typeof value === 'object' && isList(value);
}

function first(value: Value): Value {
  const next = iterate(value)[Symbol.iterator]().next();
  return next.done === true ? new Undefined(() => 'No first item, sequence was empty.') : next.value;
}

function last(value: Value): Value {
  const items = itemsOf(value);
  if (!items) throw typeError(`'${typeName(value)}' object is not reversible`);
  return items.length > 0 ? (items.at(-1) ?? null) : new Undefined(() => 'No last item, sequence was empty.');
}

function otherwise(value: Value, given: Given): Value {
  const [instead = '', boolean = false] = given.take('default', ['default_value', 'boolean']);
  return value instanceof Undefined || (isTrue(boolean) && !isTrue(value)) ? instead : value;
}

const INTEGER = /^[-+]?\d+(?:_\d+)*$/;
const FLOAT = /^[-+]?(?:(?:\d+(?:_\d+)*)?\.?\d+(?:_\d+)*|\d+(?:_\d+)*\.)(?:e[-+]?\d+)?$/i;
const SPECIAL = /^([-+]?)(inf|infinity|nan)$/i;
const PREFIXES: Readonly<Record<number, RegExp>> = { 2: /^0b/i, 8: /^0o/i, 16: /^0x/i };

/** `int(text, base)`; undefined: it is none. */
function parseInteger(text: string, base: number): bigint | undefined {
  const trimmed = strip(text, null, 'both');
  const sign = trimmed.startsWith('-') ? -1n : 1n;
  const unsigned = trimmed.replace(/^[-+]/, '');
  if (base === 10) return INTEGER.test(trimmed) ? sign * BigInt(unsigned.replaceAll('_', '')) : undefined;
  const detected = base === 0 ? [2, 8, 16].find((of) => PREFIXES[of]?.test(unsigned)) : base;
  if (detected === undefined) return parseInteger(text, 10);
  const digits = unsigned
    .replace(PREFIXES[detected] ?? /^$/, '')
    .replaceAll('_', '')
    .toLowerCase();
  if (digits === '' || charactersOf(digits).some((digit) => !(parseInt(digit, 36) < detected))) return undefined;
  return (
    sign * charactersOf(digits).reduce((total, digit) => total * BigInt(detected) + BigInt(parseInt(digit, 36)), 0n)
  );
}

/** `float(text)`; undefined: it is none. */
function parseFloatText(text: string): number | undefined {
  const trimmed = strip(text, null, 'both');
  if (FLOAT.test(trimmed)) return Number(trimmed.replaceAll('_', ''));
  const special = SPECIAL.exec(trimmed);
  if (!special) return undefined;
  if (special[2]?.toLowerCase() === 'nan') return NaN;
  return special[1] === '-' ? -Infinity : Infinity;
}

function intFilter(value: Value, given: Given): Value {
  const [instead = 0n, base = 10n] = given.take('int', ['default', 'base']);
  if (value instanceof Undefined) value.fail();
  const text = stringOf(value);
  if (text !== undefined) {
    const integer = typeof base === 'bigint' ? parseInteger(text, Number(base)) : undefined;
    if (integer !== undefined) return integer;
    const number = parseFloatText(text);
    return number === undefined || !Number.isFinite(number) ? instead : BigInt(Math.trunc(number));
  }
  if (!isNumber(value)) return instead;
  const number = numberOf(value);
  if (typeof number === 'bigint') return number;
  if (Number.isNaN(number)) return instead;
  if (!Number.isFinite(number)) throw new PythonError('OverflowError', 'cannot convert float infinity to integer');
  return BigInt(Math.trunc(number));
}

function floatFilter(value: Value, given: Given): Value {
  const [instead = 0] = given.take('float', ['default']);
  if (value instanceof Undefined) value.fail();
  const text = stringOf(value);
  if (text !== undefined) return parseFloatText(text) ?? instead;
  return isNumber(value) ? float(numberOf(value)) : instead;
}

function round(value: Value, given: Given): Value {
  const [precision = 0n, how = 'common'] = given.take('round', ['precision', 'method']);
  if (how !== 'common' && how !== 'ceil' && how !== 'floor') {
    throw new PythonError('FilterArgumentError', 'method must be common, ceil or floor');
  }
  if (value instanceof Undefined) value.fail();
  if (!isNumber(value)) throw typeError(`type ${typeName(value)} doesn't define __round__ method`);
  const digits = indexOf(precision) ?? 0;
  const number = numberOf(value);
  if (how !== 'common') {
    const scale = digits < 0 ? 10 ** digits : BigInt(10) ** BigInt(digits);
    const scaled = arithmetic('*', number, scale);
    if (typeof scaled === 'bigint') return arithmetic('/', scaled, scale);
    return arithmetic('/', BigInt(how === 'ceil' ? Math.ceil(Number(scaled)) : Math.floor(Number(scaled))), scale);
  }
  if (typeof number === 'bigint') return digits >= 0 ? number : roundedInteger(number, 10n ** BigInt(-digits));
  if (digits >= 0) return Number(fixed(number, digits));
  return Number(roundedInteger(BigInt(Math.trunc(number)), 10n ** BigInt(-digits)));
}

/** To the nearest multiple; of two that are as near, the even one. */
function roundedInteger(value: bigint, unit: bigint): bigint {
  const rest = ((value % unit) + unit) % unit;
  const below = (value - rest) / unit;
  const isUp = rest * 2n > unit || (rest * 2n === unit && below % 2n !== 0n);
  return (isUp ? below + 1n : below) * unit;
}

function tojson(value: Value, given: Given): string {
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

function indent(value: Value, given: Given): Value {
  const text = textOf(value);
  const [width = 4n, first = false, blank = false] = given.take('indent', ['width', 'first', 'blank']);
  const by = stringOf(width) ?? ' '.repeat(Math.max(0, intOf(width)));
  const lines = linesOf(`${text}\n`);
  const [head = '', ...rest] = lines;
  const indented = rest.map((line) => (line === '' && !isTrue(blank) ? line : by + line));
  const whole = (isTrue(first) ? by : '') + [head, ...indented].join('\n');
  return value instanceof Markup ? new Markup(whole) : whole;
}

/** The text that a filter needs to have. */
function textOf(value: Value): string {
  if (value instanceof Undefined) value.fail();
  const text = stringOf(value);
  if (text === undefined) throw typeError(`unsupported operand type(s) for +=: '${typeName(value)}' and 'str'`);
  return text;
}

function truncate(value: Value, given: Given): Value {
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

function title(text: string): string {
  return text
    .split(new RegExp(`([-${SPACE}({[<]+)`))
    .map((word) => {
      const [head = ''] = word;
      return head.toUpperCase() + word.slice(head.length).toLowerCase();
    })
    .join('');
}

function filesize(value: Value, given: Given): string {
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

function urlencode(value: Value): string {
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

function striptags(value: Value): Value {
  const bare = str(value).replace(/<!--[^]*?-->|<[^>]*>/g, '');
  const spaced = bare.replace(new RegExp(`[${SPACE}]+`, 'g'), ' ').replace(/^ | $/g, '');
  return spaced.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (whole, decimal?: string, hex?: string, name?: string) => {
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    if (hex !== undefined) return String.fromCodePoint(parseInt(hex, 16));
    return NAMED_ENTITIES[name ?? ''] ?? whole;
  });
}

function xmlattr(value: Value, given: Given): string {
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

function abs(value: Value): Value {
  if (value instanceof Undefined || !isNumber(value))
    throw typeError(`bad operand type for abs(): '${typeName(value)}'`);
  const number = numberOf(value);
  return number < 0 ? -number : typeof number === 'number' ? Math.abs(number) : number;
}

function attr(value: Value, given: Given): Value {
  const [name = null] = given.take('attr', ['name'], 1);
  const text = stringOf(name);
  if (text === undefined) throw typeError(`attribute name must be string, not '${typeName(name)}'`);
  return getOnlyAttribute(value, text);
}

function* pairs(value: Value): Generator<Value> {
  if (value instanceof Undefined) return;
  if (!(value instanceof Dict)) throw typeError('Can only get item pairs from a mapping.');
  yield* value.pairs();
}

function format(text: string, given: Given): string {
  if (given.positional.length > 0 && given.named.size > 0) {
    const message = "can't handle positional and keyword arguments at the same time";
    throw new PythonError('FilterArgumentError', message);
  }
  return percentFormat(text, given.named.size > 0 ? new Dict(given.named) : new Tuple(given.positional));
}

function replace(value: Value, given: Given): string {
  const [old = null, by = null, most = null] = given.take('replace', ['old', 'new', 'count'], 2);
  return replaced(str(value), str(old), str(by), indexOf(most) ?? -1);
}

const FILTERS: Readonly<Record<string, Filter>> = {
  abs: plain('abs', abs),
  attr,
  batch: (value, given) => new Stream('generator', batched(value, given), 'do_batch'),
  capitalize: plainText('capitalize', capitalized),
  center: ofText((text, given) => {
    const [width = 80n] = given.take('center', ['width']);
    return centered(text, intOf(width));
  }),
  count: plain('len', lengthFilter),
  d: otherwise,
  default: otherwise,
  dictsort,
  e: plain('escape', escaped),
  escape: plain('escape', escaped),
  filesizeformat: filesize,
  first: plain('first', first),
  float: floatFilter,
  forceescape: plain('forceescape', (value) => escaped(str(value))),
  format: ofText(format),
  groupby,
  indent,
  int: intFilter,
  items: plain('items', (value) => new Stream('generator', pairs(value), 'do_items')),
  join,
  last: plain('last', last),
  length: plain('len', lengthFilter),
  list: plain('list', listOf),
  lower: plainText('lower', (text) => text.toLowerCase()),
  map: (value, given) => new Stream('generator', mapped(value, given), 'sync_do_map'),
  max: (value, given) => extreme(value, given, 'max'),
  min: (value, given) => extreme(value, given, 'min'),
  reject: selecting(false, false),
  rejectattr: selecting(false, true),
  replace,
  reverse: plain('reverse', reverse),
  round,
  safe: plain('safe', (value) => new Markup(str(value))),
  select: selecting(true, false),
  selectattr: selecting(true, true),
  slice: (value, given) => new Stream('generator', slices(value, given), 'sync_do_slice'),
  sort: sortFilter,
  string: plain('string', (value) => (value instanceof Markup ? value : str(value))),
  striptags: plain('striptags', striptags),
  sum,
  title: plainText('title', title),
  tojson,
  trim: ofText((text, given) => strip(text, given.take('trim', ['chars'])[0], 'both')),
  truncate,
  unique: (value, given) => new Stream('generator', uniqueItems(value, given), 'sync_do_unique'),
  upper: plainText('upper', (text) => text.toUpperCase()),
  urlencode: plain('urlencode', urlencode),
  wordcount: plain('wordcount', (value) => BigInt(str(value).match(/[\p{L}\p{N}_]+/gu)?.length ?? 0)),
  xmlattr,
};
