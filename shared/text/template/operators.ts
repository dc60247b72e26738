/** Python's operators. */
import { percentFormat } from './formatting.ts';
import { str } from './text.ts';
import type { Arithmetic, Comparison } from './syntax.ts';
import {
  Dict,
  Markup,
  PythonError,
  Range,
  Stream,
  Tuple,
  Undefined,
  View,
  charactersOf,
  equals,
  isLess,
  isList,
  isNumber,
  isPlain,
  iterate,
  numberOf,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

type Operand = bigint | number;

/** Limits on the items of a repeated or joined sequence, and on the bits of an int. A template that exceeds one fails. */
const MAX_ITEMS = 10_000_000;
const MAX_BITS = 1_000_000;

/** Python's arithmetic operators. @throws PythonError when the operands do not support the operator */
export function arithmetic(operator: Arithmetic, a: Value, b: Value): Value {
  if (operator === '%' && stringOf(a) !== undefined) return modulo(a, b);
  if (a instanceof Undefined) a.fail();
  if (b instanceof Undefined) b.fail();
  if (isNumber(a) && isNumber(b)) return calculate(operator, numberOf(a), numberOf(b));
  const value = operator === '+' ? joined(a, b) : operator === '*' ? repeated(a, b) : undefined;
  if (value !== undefined) return value;
  const name = operator === '**' ? '** or pow()' : operator;
  throw typeError(`unsupported operand type(s) for ${name}: '${typeName(a)}' and '${typeName(b)}'`);
}

function modulo(a: Value, b: Value): Value {
  const text = percentFormat(stringOf(a) ?? '', b);
  return a instanceof Markup ? new Markup(text) : text;
}

function joined(a: Value, b: Value): Value | undefined {
  if (a instanceof Markup || b instanceof Markup) return joinedMarkup(a, b);
  if (typeof a === 'string') {
    if (typeof b === 'string') return a + b;
    throw typeError(`can only concatenate str (not "${typeName(b)}") to str`);
  }
  if (a instanceof Tuple) {
    if (b instanceof Tuple) return new Tuple(joinedItems(a.items, b.items));
    throw typeError(`can only concatenate tuple (not "${typeName(b)}") to tuple`);
  }
  if (a === null || isNumber(a) || !isList(a)) return undefined;
  if (b !== null && typeof b === 'object' && isList(b)) return joinedItems(a, b);
  throw typeError(`can only concatenate list (not "${typeName(b)}") to list`);
}

function joinedItems(a: readonly Value[], b: readonly Value[]): Value[] {
  if (a.length + b.length > MAX_ITEMS) throw new PythonError('MemoryError', 'too long');
  return [...a, ...b];
}

/** Joins two strings of which one is Markup: the other one is escaped. Undefined when one is no string. */
function joinedMarkup(a: Value, b: Value): Value | undefined {
  if (stringOf(a) === undefined || stringOf(b) === undefined) return undefined;
  return new Markup(escaped(a).text + escaped(b).text);
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  "'": '&#39;',
  '"': '&#34;',
};

/** Escapes a value's text for HTML. Markup is returned as it is. */
export function escaped(value: Value): Markup {
  if (value instanceof Markup) return value;
  return new Markup(str(value).replace(/[&<>'"]/g, (c) => ENTITIES[c] ?? c));
}

function repeated(a: Value, b: Value): Value | undefined {
  const [sequence, count] = typeof a === 'bigint' || typeof a === 'boolean' ? [b, a] : [a, b];
  const text = stringOf(sequence);
  const items = sequence instanceof Tuple ? sequence.items : isListValue(sequence) ? sequence : undefined;
  if (text === undefined && !items) return undefined;
  if (typeof count !== 'bigint' && typeof count !== 'boolean') {
    throw typeError(`can't multiply sequence by non-int of type '${typeName(count)}'`);
  }
  const times = Math.max(0, Number(count));
  if (times * (text?.length ?? items?.length ?? 0) > MAX_ITEMS) throw new PythonError('MemoryError', 'too long');
  if (text !== undefined) return sequence instanceof Markup ? new Markup(text.repeat(times)) : text.repeat(times);
  const all = Array.from({ length: times }, () => items ?? []).flat();
  return sequence instanceof Tuple ? new Tuple(all) : all;
}

function isListValue(value: Value): value is readonly Value[] {
  return value !== null && typeof value === 'object' && isList(value);
}

function calculate(operator: Arithmetic, a: Operand, b: Operand): Operand {
  if (typeof a === 'bigint' && typeof b === 'bigint') return calculateInts(operator, a, b);
  return calculateFloats(operator, float(a), float(b));
}

function calculateInts(operator: Arithmetic, a: bigint, b: bigint): Operand {
  switch (operator) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return bounded(a * b);
    case '/':
      if (b === 0n) throw new PythonError('ZeroDivisionError', 'division by zero');
      return float(a) / float(b);
    case '**':
      return b < 0n ? calculateFloats('**', float(a), float(b)) : intPower(a, b);
    case '//':
    case '%': {
      if (b === 0n) throw new PythonError('ZeroDivisionError', 'integer division or modulo by zero');
      const isInexact = a % b !== 0n && a < 0n !== b < 0n;
      return operator === '%' ? (isInexact ? (a % b) + b : a % b) : isInexact ? a / b - 1n : a / b;
    }
  }
}

function intPower(a: bigint, b: bigint): bigint {
  const size = a < 0n ? -a : a;
  if (size > 1n && Number(b) * size.toString(2).length > MAX_BITS) throw new PythonError('OverflowError', 'too large');
  return a ** b;
}

function bounded(value: bigint): bigint {
  if (BigInt.asIntN(MAX_BITS, value) !== value) throw new PythonError('OverflowError', 'too large');
  return value;
}

function calculateFloats(operator: Arithmetic, a: number, b: number): number {
  switch (operator) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '/':
      if (b === 0) throw new PythonError('ZeroDivisionError', 'float division by zero');
      return a / b;
    case '**':
      return floatPower(a, b);
    case '//':
      if (b === 0) throw new PythonError('ZeroDivisionError', 'float floor division by zero');
      return Math.floor((a - floatModulo(a, b)) / b + 0.5);
    case '%':
      if (b === 0) throw new PythonError('ZeroDivisionError', 'float modulo');
      return floatModulo(a, b);
  }
}

function floatPower(a: number, b: number): number {
  if (a === 0 && b < 0) throw new PythonError('ZeroDivisionError', '0.0 cannot be raised to a negative power');
  if (a < 0 && Number.isFinite(b) && !Number.isInteger(b)) throw valueError('complex numbers are not supported');
  const power = a ** b;
  if (!Number.isFinite(power) && Number.isFinite(a) && Number.isFinite(b)) {
    throw new PythonError('OverflowError', "(34, 'Numerical result out of range')");
  }
  return power;
}

function floatModulo(a: number, b: number): number {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}

/** Converts a number to a float. @throws PythonError `OverflowError` for an int beyond the range of floats */
export function float(value: Operand): number {
  const number = Number(value);
  if (typeof value === 'bigint' && !Number.isFinite(number)) {
    throw new PythonError('OverflowError', 'int too large to convert to float');
  }
  return number;
}

/** Python's unary minus. @throws PythonError for a value that is no number */
export function negative(value: Value): Value {
  if (value instanceof Undefined) value.fail();
  if (isNumber(value)) return -numberOf(value);
  throw typeError(`bad operand type for unary -: '${typeName(value)}'`);
}

/** Python's unary plus: returns the number, a bool as an int. @throws PythonError for a value that is no number */
export function positive(value: Value): Value {
  if (value instanceof Undefined) value.fail();
  if (isNumber(value)) return numberOf(value);
  throw typeError(`bad operand type for unary +: '${typeName(value)}'`);
}

/**
 * Evaluates one comparison as Python does. @throws PythonError when the operands have no order, or when `in` cannot search its right
 * operand
 */
export function compare(operator: Comparison, a: Value, b: Value): boolean {
  switch (operator) {
    case '==':
      return equals(a, b);
    case '!=':
      return !equals(a, b);
    case '<':
      return isLess(a, b, operator);
    case '>':
      return isLess(b, a, operator);
    case '<=':
      return equalsOrdered(a, b) || isLess(a, b, operator);
    case '>=':
      return equalsOrdered(a, b) || isLess(b, a, operator);
    case 'in':
      return contains(b, a);
    case 'not in':
      return !contains(b, a);
  }
}

/** Whether two values are equal and of a type that has an order. */
function equalsOrdered(a: Value, b: Value): boolean {
  return a !== null && !(a instanceof Dict) && !(a instanceof Undefined) && equals(a, b);
}

/** Python's `item in container`. @throws PythonError `TypeError` when the container cannot be searched */
function contains(container: Value, item: Value): boolean {
  const text = stringOf(container);
  if (text !== undefined) {
    const part = stringOf(item);
    if (part === undefined) throw typeError(`'in <string>' requires string as left operand, not ${typeName(item)}`);
    return text.includes(part);
  }
  if (container instanceof Dict) return container.has(item);
  if (container instanceof View && container.type === 'dict_keys') return container.dict.has(item);
  if (container === null || isNumber(container)) throw notIterable(container);
  for (const member of iterateOr(container)) if (equals(member, item)) return true;
  return false;
}

function iterateOr(container: Value): Iterable<Value> {
  if (container instanceof Stream || container instanceof Range) return iterate(container);
  try {
    return iterate(container);
  } catch {
    throw notIterable(container);
  }
}

function notIterable(value: Value): PythonError {
  return typeError(`argument of type '${typeName(value)}' is not iterable`);
}

/** Python's `value[start:stop:step]`; undefined for a value without slices. */
export function sliced(
  value: Value,
  start: bigint | undefined,
  stop: bigint | undefined,
  step: bigint | undefined,
): Value | undefined {
  const by = Number(step ?? 1n);
  if (by === 0) throw valueError('slice step cannot be zero');
  const text = stringOf(value);
  if (text !== undefined) {
    const part = slicedText(text, bound(start), bound(stop), by);
    return value instanceof Markup ? new Markup(part) : part;
  }
  if (value instanceof Tuple) return new Tuple(slicedItems(value.items, bound(start), bound(stop), by));
  if (value instanceof Range) return slicedRange(value, bound(start), bound(stop), by);
  return isListValue(value) ? slicedItems(value, bound(start), bound(stop), by) : undefined;
}

function bound(index: bigint | undefined): number | undefined {
  return index === undefined ? undefined : Number(index);
}

/**
 * Returns `text[start:stop:step]` as Python does: indices count characters (code points), negative ones from the end. `step` is not
 * zero.
 */
export function slicedText(text: string, start?: number, stop?: number, step = 1): string {
  if (!isPlain(text)) return slicedItems(charactersOf(text), start, stop, step).join('');
  return step === 1 ? text.slice(start, stop) : slicedItems(charactersOf(text), start, stop, step).join('');
}

function slicedItems<T>(items: readonly T[], start: number | undefined, stop: number | undefined, step: number): T[] {
  return step === 1
    ? items.slice(start, stop)
    : indices(items.length, start, stop, step).flatMap((i) => items.slice(i, i + 1));
}

function slicedRange(range: Range, start: number | undefined, stop: number | undefined, step: number): Range {
  const chosen = indices(range.length, start, stop, step);
  const from = range.start + (chosen[0] ?? 0) * range.step;
  return new Range(from, from + chosen.length * step * range.step, step * range.step);
}

/** Returns the indices that a slice selects, in its order. */
function indices(length: number, start: number | undefined, stop: number | undefined, step: number): number[] {
  const [lowest, highest] = step > 0 ? [0, length] : [-1, length - 1];
  const place = (index: number | undefined, unset: number): number => {
    if (index === undefined) return unset;
    return Math.min(Math.max(index < 0 ? index + length : index, lowest), highest);
  };
  const from = place(start, step > 0 ? 0 : length - 1);
  const to = place(stop, step > 0 ? length : -1);
  const count = Math.max(0, Math.ceil((to - from) / step));
  return Array.from({ length: count }, (_, i) => from + i * step);
}

/**
 * Returns the item of a list, tuple, range or string at an index, which counts from the end when negative; undefined when there is
 * none.
 */
export function itemAt(value: Value, index: bigint): Value | undefined {
  const place = Number(index);
  const text = stringOf(value);
  if (text !== undefined) {
    const character = isPlain(text) ? text.at(place) : charactersOf(text).at(place);
    return character !== undefined && value instanceof Markup ? new Markup(character) : character;
  }
  if (value instanceof Tuple) return value.items.at(place);
  if (value instanceof Range) return value.items().at(place);
  return isListValue(value) ? value.at(place) : undefined;
}
