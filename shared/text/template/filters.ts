/** Jinja's filters by name, with the implementations of those for sequences and for any value. */
import { abs, floatFilter, intFilter, lengthFilter, round } from './number_filters.ts';
import {
  tojson,
  indent,
  truncate,
  title,
  filesize,
  urlencode,
  striptags,
  xmlattr,
  format,
  replace,
} from './text_filters.ts';
import { getItem, getOnlyAttribute } from './attributes.ts';
import { arithmetic, escaped, sliced } from './operators.ts';
import { capitalized, centered, indexOf, intOf, strip } from './strings.ts';
import { TESTS } from './tests.ts';
import { str } from './text.ts';
import {
  Dict,
  Given,
  Markup,
  PythonError,
  Range,
  Stream,
  Tuple,
  Undefined,
  equals,
  isLess,
  isList,
  isTrue,
  iterate,
  itemsOf,
  listOf,
  quoted,
  stringOf,
  typeError,
  typeName,
  type Value,
} from './values.ts';
import { spendOn } from './steps.ts';

type Filter = (value: Value, given: Given) => Value;

/** Applies a filter by its name. @throws PythonError where there is none */
export function applyFilter(name: string, value: Value, given: Given): Value {
  const filter = Object.hasOwn(FILTERS, name) ? FILTERS[name] : undefined;
  if (!filter) throw new PythonError('TemplateRuntimeError', `No filter named ${quoted(name)} found.`);
  return filter(value, given);
}

/** Applies a test by its name. @throws PythonError `TemplateRuntimeError` for an unknown name */
export function applyTest(name: string, value: Value, given: Given): boolean {
  spendOn(value);
  if (name === 'filter') return typeof value === 'string' && isFilter(value);
  if (name === 'test') return typeof value === 'string' && isTest(value);
  const test = Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
  if (!test) throw new PythonError('TemplateRuntimeError', `No test named ${quoted(name)} found.`);
  return test(value, given);
}

/** Whether a filter of this name exists. */
export function isFilter(name: string): boolean {
  return Object.hasOwn(FILTERS, name);
}

/** Whether a test of this name exists. */
export function isTest(name: string): boolean {
  return Object.hasOwn(TESTS, name) || name === 'filter' || name === 'test';
}

/** Creates a filter of text, which returns Markup for Markup. */
function ofText(change: (text: string, given: Given) => string): Filter {
  return (value, given) => {
    const text = change(str(value), given);
    return value instanceof Markup ? new Markup(text) : text;
  };
}

/** Creates a filter without arguments. */
function plain(callee: string, change: (value: Value) => Value): Filter {
  return (value, given) => {
    given.take(callee, []);
    return change(value);
  };
}

/** Creates a filter of text without arguments. */
function plainText(callee: string, change: (text: string) => string): Filter {
  return ofText((text, given) => {
    given.take(callee, []);
    return change(text);
  });
}

/**
 * Returns a function that reads the attribute at a dotted path from an item. Numeric parts are indices; `otherwise` replaces an
 * undefined value unless it is None.
 */
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

/** Sorts items by their keys. The sort is stable in both directions: items with equal keys keep their order. */
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
