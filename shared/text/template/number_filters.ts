/** Jinja's filters that return numbers. */
import { fixed } from './formatting.ts';
import { arithmetic, float } from './operators.ts';
import { indexOf, strip } from './strings.ts';
import {
  type Given,
  PythonError,
  Undefined,
  charactersOf,
  isNumber,
  numberOf,
  sizeOf,
  stringOf,
  typeError,
  typeName,
  type Value,
} from './values.ts';

const INTEGER = /^[-+]?\d+(?:_\d+)*$/;
const FLOAT = /^[-+]?(?:(?:\d+(?:_\d+)*)?\.?\d+(?:_\d+)*|\d+(?:_\d+)*\.)(?:e[-+]?\d+)?$/i;
const SPECIAL = /^([-+]?)(inf|infinity|nan)$/i;
const PREFIXES: Readonly<Record<number, RegExp>> = { 2: /^0b/i, 8: /^0o/i, 16: /^0x/i };

/** Python's `int(text, base)`; undefined when the text is no integer. */
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

/** Python's `float(text)`; undefined when the text is no float. */
export function parseFloatText(text: string): number | undefined {
  const trimmed = strip(text, null, 'both');
  if (FLOAT.test(trimmed)) return Number(trimmed.replaceAll('_', ''));
  const special = SPECIAL.exec(trimmed);
  if (!special) return undefined;
  if (special[2]?.toLowerCase() === 'nan') return NaN;
  return special[1] === '-' ? -Infinity : Infinity;
}

/**
 * Jinja's `int` filter: converts to an int, truncating floats. Returns `default` when the value is no number. @throws PythonError for
 * an undefined value or an infinite float
 */
export function intFilter(value: Value, given: Given): Value {
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

/**
 * Jinja's `float` filter: converts to a float. Returns `default` when the value is no number. @throws PythonError for an undefined
 * value or an int beyond the range of floats
 */
export function floatFilter(value: Value, given: Given): Value {
  const [instead = 0] = given.take('float', ['default']);
  if (value instanceof Undefined) value.fail();
  const text = stringOf(value);
  if (text !== undefined) return parseFloatText(text) ?? instead;
  return isNumber(value) ? float(numberOf(value)) : instead;
}

/**
 * Jinja's `round` filter: rounds to `precision` digits by `method` (`common`, `ceil` or `floor`). @throws PythonError for another
 * method or a value that is no number
 */
export function round(value: Value, given: Given): Value {
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

/** Rounds to the nearest multiple of `unit`; a tie goes to the even multiple. */
function roundedInteger(value: bigint, unit: bigint): bigint {
  const rest = ((value % unit) + unit) % unit;
  const below = (value - rest) / unit;
  const isUp = rest * 2n > unit || (rest * 2n === unit && below % 2n !== 0n);
  return (isUp ? below + 1n : below) * unit;
}

/** Jinja's `abs` filter: returns the absolute value. @throws PythonError `TypeError` for a value that is no number */
export function abs(value: Value): Value {
  if (value instanceof Undefined || !isNumber(value))
    throw typeError(`bad operand type for abs(): '${typeName(value)}'`);
  const number = numberOf(value);
  return number < 0 ? -number : typeof number === 'number' ? Math.abs(number) : number;
}

/** Jinja's `length` filter: returns the number of items or characters. @throws PythonError `TypeError` for a value without a length */
export function lengthFilter(value: Value): bigint {
  const size = sizeOf(value);
  if (size === undefined) throw typeError(`object of type '${typeName(value)}' has no len()`);
  return BigInt(size);
}
