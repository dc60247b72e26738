/**
 * Python's values: `null` is None, a bigint is an int, a number is a float, an array is a list, which is never changed; other types
 * extend Thing. Their truth, equality, order, length and items follow Python.
 */

/** A value of the template language. */
export type Value = null | boolean | bigint | number | string | readonly Value[] | Thing;

/** An exception that Python or Jinja would raise: `type` is the name of its class, and the message has their wording. */
export class PythonError extends Error {
  readonly type: string;

  constructor(type: string, message: string) {
    super(message);
    this.type = type;
  }
}

/** Creates Python's `TypeError`. */
export function typeError(message: string): PythonError {
  return new PythonError('TypeError', message);
}

/** Creates Python's `ValueError`. */
export function valueError(message: string): PythonError {
  return new PythonError('ValueError', message);
}

/** A value whose Python type has no counterpart in JavaScript. */
export abstract class Thing {
  /** Name of the value's Python class. `module` is the module of the class, undefined for a builtin. */
  abstract readonly type: string;
  readonly module: string | undefined = undefined;
  /** Calls the value with arguments and returns the result; undefined when the value cannot be called. */
  readonly call: ((given: Given) => Value) | undefined = undefined;

  /** Returns the value's `repr`; undefined for the default of its type. @param repr returns the `repr` of a part */
  shown(repr: (value: Value) => string): string | undefined;
  shown(): string | undefined {
    return undefined;
  }

  /** Returns the field or method of this name; undefined when there is none. */
  attribute(name: string): Value | undefined;
  attribute(): Value | undefined {
    return undefined;
  }
}

/**
 * Jinja's `Undefined`, the result of a failed lookup: prints as empty text, iterates as empty and is false. Every other use throws
 * PythonError.
 */
export class Undefined extends Thing {
  readonly type = 'Undefined';
  readonly #message: () => string;
  readonly #error: string;

  constructor(message: () => string, error = 'UndefinedError') {
    super();
    this.#message = message;
    this.#error = error;
  }

  /** Raises the error of a failed lookup, on every use other than printing, iterating and testing for truth. @throws PythonError always */
  fail(): never {
    throw new PythonError(this.#error, this.#message());
  }
}

/** Python's tuple. With `names`, its items can also be read as attributes, as in a named tuple. */
export class Tuple extends Thing {
  readonly type = 'tuple';
  readonly items: readonly Value[];
  readonly #names: readonly string[];

  constructor(items: readonly Value[], names: readonly string[] = []) {
    super();
    this.items = items;
    this.#names = names;
  }

  override attribute(name: string): Value | undefined {
    return this.items[this.#names.indexOf(name)];
  }
}

/** Text that is escaped for HTML. */
export class Markup extends Thing {
  readonly type = 'Markup';
  override readonly module = 'markupsafe';
  readonly text: string;

  constructor(text: string) {
    super();
    this.text = text;
  }
}

/** Python's dict, in the order of insertion. Keys are the same when Python's `==` says so, such as 1, 1.0 and True. */
export class Dict extends Thing {
  readonly type = 'dict';
  readonly #entries = new Map<unknown, [key: Value, value: Value]>();

  constructor(entries: Iterable<readonly [key: Value, value: Value]> = []) {
    super();
    for (const [key, value] of entries) this.set(key, value);
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: Value): Value | undefined {
    return this.#entries.get(hashOf(key))?.[1];
  }

  has(key: Value): boolean {
    return this.#entries.has(hashOf(key));
  }

  /** Sets the value of a key. An existing key keeps its position. */
  set(key: Value, value: Value): void {
    const hash = hashOf(key);
    const entry = this.#entries.get(hash);
    if (entry) entry[1] = value;
    else this.#entries.set(hash, [key, value]);
  }

  entries(): Iterable<readonly [key: Value, value: Value]> {
    return this.#entries.values();
  }

  keys(): Value[] {
    return Array.from(this.#entries.values(), ([key]) => key);
  }

  values(): Value[] {
    return Array.from(this.#entries.values(), ([, value]) => value);
  }

  pairs(): Tuple[] {
    return Array.from(this.#entries.values(), (entry) => new Tuple([...entry]));
  }
}

/** `keys()`, `values()` and `items()` of a dict. */
export class View extends Thing {
  readonly type: 'dict_keys' | 'dict_values' | 'dict_items';
  readonly dict: Dict;

  constructor(type: View['type'], dict: Dict) {
    super();
    this.type = type;
    this.dict = dict;
  }

  items(): readonly Value[] {
    if (this.type === 'dict_items') return this.dict.pairs();
    return this.type === 'dict_keys' ? this.dict.keys() : this.dict.values();
  }
}

/** Python's `range` of integers, half-open [start, stop). `step` is not zero. */
export class Range extends Thing {
  readonly type = 'range';
  readonly start: number;
  readonly stop: number;
  readonly step: number;
  readonly length: number;

  constructor(start: number, stop: number, step: number) {
    super();
    this.start = start;
    this.stop = stop;
    this.step = step;
    this.length = Math.max(0, Math.ceil((stop - start) / step));
  }

  items(): Value[] {
    return Array.from({ length: this.length }, (_, i) => BigInt(this.start + i * this.step));
  }
}

/** An iterator that can be read only once, such as the result of the filter `map`. */
export class Stream extends Thing {
  readonly type: string;
  readonly iterator: Iterator<Value>;
  readonly #maker: string;

  /** @param maker name of the function that made a generator, for its `repr`; empty for other iterators */
  constructor(type: string, items: Iterable<Value>, maker = '') {
    super();
    this.type = type;
    this.iterator = items[Symbol.iterator]();
    this.#maker = maker;
  }

  override shown(): string {
    return `<${this.type} object${this.#maker === '' ? '' : ` ${this.#maker}`} at 0x0>`;
  }
}

/** The arguments of a call. */
export class Given {
  readonly positional: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;

  constructor(positional: readonly Value[] = [], named: ReadonlyMap<string, Value> = new Map()) {
    this.positional = positional;
    this.named = named;
  }

  /**
   * Returns the arguments in the order of the parameters `names`, undefined for an omitted one; the first `required` must be there.
   * @throws PythonError `TypeError` for missing, surplus or unknown arguments
   */
  take(callee: string, names: readonly string[], required = 0): (Value | undefined)[] {
    if (this.positional.length > names.length) {
      throw typeError(`${callee}() takes at most ${names.length} arguments (${this.positional.length} given)`);
    }
    for (const name of this.named.keys()) {
      const at = names.indexOf(name);
      if (at < 0) throw typeError(`${callee}() got an unexpected keyword argument '${name}'`);
      if (at < this.positional.length) throw typeError(`${callee}() got multiple values for argument '${name}'`);
    }
    const taken = names.map(
      (name, i) => this.positional[i] ?? (i < this.positional.length ? null : this.named.get(name)),
    );
    const missing = taken.findIndex((value, i) => value === undefined && i < required);
    if (missing >= 0) throw typeError(`${callee}() missing 1 required positional argument: '${names[missing]}'`);
    return taken;
  }
}

/** A function that templates can call. */
export class Callable extends Thing {
  readonly type: string = 'function';
  readonly name: string;
  override readonly call: (given: Given) => Value;

  constructor(name: string, call: (given: Given) => Value) {
    super();
    this.name = name;
    this.call = call;
  }
}

/** A method of a value, which prints as one. */
export class Method extends Callable {
  override readonly type = 'builtin_function_or_method';
  readonly of: Value;

  constructor(name: string, of: Value, call: (given: Given) => Value) {
    super(name, call);
    this.of = of;
  }
}

/** Whether a value is a Python list; a tuple is none. */
export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value);
}

/** Whether a value is a Python bool, int or float. */
export function isNumber(value: Value): value is boolean | bigint | number {
  return typeof value === 'bigint' || typeof value === 'number' || typeof value === 'boolean';
}

/** Returns the text of a str or Markup; undefined for any other value. */
export function stringOf(value: Value): string | undefined {
  if (typeof value === 'string') return value;
  return value instanceof Markup ? value.text : undefined;
}

/** Returns the name of the value's Python class. */
export function typeName(value: Value): string {
  if (value === null) return 'NoneType';
  if (typeof value === 'boolean') return 'bool';
  if (typeof value === 'bigint') return 'int';
  if (typeof value === 'number') return 'float';
  if (typeof value === 'string') return 'str';
  return isList(value) ? 'list' : value.type;
}

/** Returns the `Undefined` of a failed lookup. @param object the value that lacks `key` as attribute or item */
export function missing(object: Value, key: Value): Undefined {
  return new Undefined(() => {
    const module = object instanceof Thing ? object.module : undefined;
    const of = object === null ? 'None' : `${module === undefined ? '' : `${module}.`}${typeName(object)} object`;
    if (typeof key === 'string') return `${quoted(of)} has no attribute ${quoted(key)}`;
    return `${of} has no element ${isNumber(key) || key === null ? spelledPlainly(key) : typeName(key)}`;
  });
}

function spelledPlainly(value: null | boolean | bigint | number): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return String(value);
}

/** Returns Python's `repr` of a string. */
export function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inner = text.replace(/[\\'"]|[\p{C}\p{Z}]/gu, (c) => {
    if (c === ' ' || (c !== quote && (c === "'" || c === '"'))) return c;
    if (c === quote || c === '\\') return `\\${c}`;
    if (c === '\n') return '\\n';
    if (c === '\r') return '\\r';
    if (c === '\t') return '\\t';
    const code = c.codePointAt(0) ?? 0;
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, '0')}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, '0')}` : `\\U${code.toString(16).padStart(8, '0')}`;
  });
  return quote + inner + quote;
}

/** Python's `bool(value)`: false for None, False, zero, undefined values and anything of length 0. */
export function isTrue(value: Value): boolean {
  if (!(value instanceof Thing)) {
    return typeof value === 'object' ? value !== null && value.length > 0 : Boolean(value) || Number.isNaN(value);
  }
  return value instanceof Stream || (sizeOf(value) ?? 1) > 0;
}

/** Returns the number of items, or characters, of a value; undefined when the value has no length. */
export function sizeOf(value: Value): number | undefined {
  const text = stringOf(value);
  if (text !== undefined) return lengthOf(text);
  if (value === null || isNumber(value) || typeof value === 'string') return undefined;
  if (isList(value)) return value.length;
  if (value instanceof Tuple) return value.items.length;
  if (value instanceof Dict) return value.size;
  if (value instanceof View) return value.dict.size;
  if (value instanceof Range) return value.length;
  return value instanceof Undefined ? 0 : undefined;
}

const SURROGATE = /[\ud800-\udfff]/;

/** Whether each character of a text is one code unit. */
export function isPlain(text: string): boolean {
  return !SURROGATE.test(text);
}

/** Returns the characters (code points) of a text. */
export function charactersOf(text: string): string[] {
  return Array.from(text);
}

/** Returns the length of a text in characters (code points). */
export function lengthOf(text: string): number {
  if (isPlain(text)) return text.length;
  let length = 0;
  for (const character of text) length += character === '' ? 0 : 1;
  return length;
}

/** Returns the items of a value that can be iterated repeatedly; undefined for any other value, such as a Stream. */
export function itemsOf(value: Value): readonly Value[] | undefined {
  const text = stringOf(value);
  if (text !== undefined) return charactersOf(text);
  if (value === null || isNumber(value) || typeof value === 'string') return undefined;
  if (isList(value)) return value;
  if (value instanceof Tuple) return value.items;
  if (value instanceof Dict) return value.keys();
  if (value instanceof View || value instanceof Range) return value.items();
  return value instanceof Undefined ? [] : undefined;
}

/** Returns an iterable over the items of a value. @throws PythonError `TypeError` for a value that cannot be iterated */
export function iterate(value: Value): Iterable<Value> {
  if (value instanceof Stream) {
    // Without a `return` method, so that a loop that ends early leaves the remaining items readable.
    return { [Symbol.iterator]: () => ({ next: () => value.iterator.next() }) };
  }
  const items = itemsOf(value);
  if (!items) throw typeError(`'${typeName(value)}' object is not iterable`);
  return items;
}

/**
 * Returns the items of a value in a new array; a stream is read to its end. @throws PythonError `TypeError` for a value that cannot be
 * iterated
 */
export function listOf(value: Value): Value[] {
  return [...iterate(value)];
}

/** Returns a map key that is the same for values that are equal as dict keys. @throws PythonError `TypeError` for an unhashable value */
function hashOf(value: Value): unknown {
  if (typeof value === 'boolean') return value ? 1n : 0n;
  if (typeof value === 'number') return Number.isInteger(value) ? BigInt(value) : value;
  if (value instanceof Markup) return value.text;
  if (value instanceof Tuple) return `\0${JSON.stringify(value.items.map((item) => hashText(hashOf(item))))}`;
  if (value instanceof Undefined) return Undefined;
  if (isList(value) || value instanceof Dict || value instanceof View) {
    throw typeError(`unhashable type: '${typeName(value)}'`);
  }
  return value;
}

function hashText(hash: unknown): string {
  return `${typeof hash}:${String(hash)}`;
}

/** Python's `a == b`: numbers compare by value, lists, tuples, dicts and ranges by content. */
export function equals(a: Value, b: Value): boolean {
  if (a === b) return true;
  if (isNumber(a)) return isNumber(b) && !(numberOf(a) < numberOf(b)) && !(numberOf(a) > numberOf(b)) && !isNaN(a, b);
  const text = stringOf(a);
  if (text !== undefined) return text === stringOf(b);
  if (a === null || b === null || isNumber(b) || typeof a === 'string' || typeof b === 'string') return false;
  if (isList(a)) return isList(b) && areEqual(a, b);
  if (isList(b)) return false;
  if (a instanceof Tuple) return b instanceof Tuple && areEqual(a.items, b.items);
  if (a instanceof Dict) return b instanceof Dict && a.size === b.size && isWithin(a, b);
  if (a instanceof Range) return b instanceof Range && areEqual(a.items(), b.items());
  return a instanceof Undefined && b instanceof Undefined;
}

function isNaN(a: Value, b: Value): boolean {
  return Number.isNaN(a) || Number.isNaN(b);
}

/** Returns the number, with a bool as the int 0 or 1. */
export function numberOf(value: boolean | bigint | number): bigint | number {
  return typeof value === 'boolean' ? (value ? 1n : 0n) : value;
}

function areEqual(a: readonly Value[], b: readonly Value[]): boolean {
  return a.length === b.length && a.every((item, i) => equals(item, b[i] ?? null));
}

function isWithin(a: Dict, b: Dict): boolean {
  for (const [key, value] of a.entries()) {
    const other = b.get(key);
    if (other === undefined || !equals(value, other)) return false;
  }
  return true;
}

/** Python's `a < b`. `operator` is the one that the error names. @throws PythonError `TypeError` when the values have no order */
export function isLess(a: Value, b: Value, operator = '<'): boolean {
  if (a instanceof Undefined) a.fail();
  if (b instanceof Undefined) b.fail();
  if (isNumber(a) && isNumber(b)) return numberOf(a) < numberOf(b);
  const [left, right] = [stringOf(a), stringOf(b)];
  if (left !== undefined && right !== undefined) return isTextLess(left, right);
  const [items, others] = [sequenceOf(a), sequenceOf(b)];
  if (!items || !others || typeName(a) !== typeName(b)) {
    throw typeError(`'${operator}' not supported between instances of '${typeName(a)}' and '${typeName(b)}'`);
  }
  for (const [i, item] of items.entries()) {
    const other = others[i];
    if (other === undefined) return false;
    if (!equals(item, other)) return isLess(item, other, operator);
  }
  return items.length < others.length;
}

function sequenceOf(value: Value): readonly Value[] | undefined {
  if (value instanceof Tuple) return value.items;
  return value !== null && typeof value === 'object' && isList(value) ? value : undefined;
}

/** Compares by code points, as Python does, and not by UTF-16 code units. */
function isTextLess(a: string, b: string): boolean {
  if (isPlain(a) && isPlain(b)) return a < b;
  const [left, right] = [charactersOf(a), charactersOf(b)];
  for (const [i, character] of left.entries()) {
    const difference = (character.codePointAt(0) ?? 0) - (right[i]?.codePointAt(0) ?? -1);
    if (difference !== 0) return difference < 0;
  }
  return left.length < right.length;
}

/** Converts a JSON value to a Python value. A Python value is returned as it is. */
export function valueOf(json: unknown): Value {
  if (typeof json === 'bigint' || json instanceof Thing) return json;
  if (json === null || typeof json === 'string' || typeof json === 'boolean') return json;
  if (typeof json === 'number') return Number.isInteger(json) ? BigInt(json) : json;
  if (typeof json !== 'object') throw typeError(`a template cannot be given a ${typeof json}`);
  if (Array.isArray(json)) return json.map(valueOf);
  return new Dict(Object.entries(json).map(([key, value]) => [key, valueOf(value)] as const));
}
