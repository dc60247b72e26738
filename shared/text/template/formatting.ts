/** Python's string formatting: `%`, `str.format`, and format specifications. */
import { exponentText, floatText, repr, str } from './text.ts';
import {
  Callable,
  Dict,
  PythonError,
  Stream,
  Tuple,
  View,
  charactersOf,
  isNumber,
  isTrue,
  lengthOf,
  numberOf,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

/** Pads a text with `fill` to `width` characters: on the right for `<`, on the left for `>`, else on both sides. */
export function padded(text: string, width: number, align: string, fill = ' '): string {
  const lacking = Math.max(0, width - lengthOf(text));
  if (align === '<') return text + fill.repeat(lacking);
  if (align === '>') return fill.repeat(lacking) + text;
  const left = Math.floor(lacking / 2);
  return fill.repeat(left) + text + fill.repeat(lacking - left);
}

/** Returns a number with `decimals` decimals. A tie is rounded to the even digit, as in Python. */
export function fixed(value: number, decimals: number): string {
  if (!Number.isFinite(value)) return floatText(value);
  const digits = Math.min(decimals, 100);
  if (Math.abs(value) >= 1e21) return `${BigInt(value)}${digits > 0 ? `.${'0'.repeat(digits)}` : ''}`;
  const text = value.toFixed(digits);
  const rest = value.toFixed(100).slice(value.toFixed(100).indexOf('.') + 1 + digits);
  const isUneven = '13579'.includes(text.at(-1) ?? '');
  // JavaScript rounds a tie away from zero, which is wrong when the last digit is odd.
  if (!/^50*$/.test(rest) || !isUneven) return text;
  const whole = BigInt(text.replace(/[-.]/g, '')) - 1n;
  const shown = whole.toString().padStart(digits + 1, '0');
  const sign = text.startsWith('-') ? '-' : '';
  return sign + (digits === 0 ? shown : `${shown.slice(0, -digits)}.${shown.slice(-digits)}`);
}

function general(value: number, precision: number, keepsZeros: boolean): string {
  const digits = Math.max(1, precision);
  if (!Number.isFinite(value)) return floatText(value);
  const exponential = value.toExponential(digits - 1);
  const exponent = Number(exponential.slice(exponential.indexOf('e') + 1));
  const isSmall = exponent >= -4 && exponent < digits;
  const [mantissa, power] = isSmall ? [fixed(value, digits - 1 - exponent), ''] : exponentText(exponential).split('e');
  const shown = keepsZeros || !mantissa?.includes('.') ? (mantissa ?? '') : mantissa.replace(/\.?0+$/, '');
  return isSmall ? shown : `${shown}e${power}`;
}

/** Formats a float by `kind`: `e`, `f`, `g`, `%` or a capital of these. */
function floatOf(value: number, kind: string, precision: number | undefined, keepsZeros: boolean): string {
  const lower = kind.toLowerCase();
  let text: string;
  if (lower === 'f') text = fixed(value, precision ?? 6);
  else if (lower === '%') text = `${fixed(value * 100, precision ?? 6)}%`;
  else if (lower === 'g') text = general(value, precision ?? 6, keepsZeros);
  else text = Number.isFinite(value) ? exponentText(value.toExponential(precision ?? 6)) : floatText(value);
  return kind === lower ? text : text.toUpperCase();
}

const RADIX: Readonly<Record<string, number>> = { b: 2, o: 8, x: 16, X: 16, d: 10, i: 10, u: 10 };

function signed(text: string, sign: string): string {
  return text.startsWith('-') || sign === '-' || sign === '' ? text : sign + text;
}

/** A number's text with zeros between its sign and its digits. */
function zeroFilled(text: string, width: number): string {
  const sign = /^[-+ ]?(?:0[xXob])?/.exec(text)?.[0] ?? '';
  return sign + text.slice(sign.length).padStart(width - sign.length, '0');
}

const DIRECTIVE = /%(?:\(([^)]*)\))?([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([^])?/gu;

/** Python's `format % given`. @throws PythonError when the arguments do not fit the format */
export function percentFormat(format: string, given: Value): string {
  const positional = given instanceof Tuple ? given.items : [given];
  let used = 0;
  const next = (): Value => {
    const value = positional[used++];
    if (value === undefined) throw typeError('not enough arguments for format string');
    return value;
  };
  const text = format.replace(
    DIRECTIVE,
    (_, name?: string, flags: string = '', width?: string, precision?: string, kind?: string) => {
      if (kind === undefined) throw valueError('incomplete format');
      if (kind === '%') return '%';
      const size = width === '*' ? Number(next()) : Number(width ?? 0);
      const digits = precision === '*' ? Number(next()) : precision === undefined ? undefined : Number(precision);
      const value = name === undefined ? next() : named(given, name);
      if (name !== undefined) used = positional.length;
      return directive(value, kind, flags, size, digits);
    },
  );
  if (used < positional.length && (given instanceof Tuple || isLeft(given))) {
    throw typeError('not all arguments converted during string formatting');
  }
  return text;
}

function isLeft(given: Value): boolean {
  if (given === null || isNumber(given) || stringOf(given) !== undefined) return true;
  return given instanceof View || given instanceof Stream || given instanceof Callable;
}

function named(given: Value, name: string): Value {
  if (!(given instanceof Dict)) throw typeError('format requires a mapping');
  const value = given.get(name);
  if (value === undefined) throw new PythonError('KeyError', repr(name));
  return value;
}

function directive(value: Value, kind: string, flags: string, width: number, precision: number | undefined): string {
  const align = flags.includes('-') ? '<' : '>';
  if (kind === 's' || kind === 'r' || kind === 'a') {
    const text = kind === 's' ? str(value) : repr(value);
    return padded(precision === undefined ? text : charactersOf(text).slice(0, precision).join(''), width, align);
  }
  if (kind === 'c') return padded(stringOf(value) ?? String.fromCodePoint(Number(value)), width, align);
  const sign = flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '';
  const text = signed(directiveNumber(value, kind, flags.includes('#'), precision), sign);
  return flags.includes('0') && align === '>' ? zeroFilled(text, width) : padded(text, width, align);
}

function directiveNumber(value: Value, kind: string, isMarked: boolean, precision: number | undefined): string {
  const radix = RADIX[kind];
  if (radix === undefined || kind === 'b') {
    if (!'eEfFgG'.includes(kind)) {
      throw valueError(`unsupported format character '${kind}' (0x${(kind.codePointAt(0) ?? 0).toString(16)})`);
    }
    if (!isNumber(value)) throw typeError(`must be real number, not ${typeName(value)}`);
    return floatOf(Number(value), kind, precision, isMarked);
  }
  if (!isNumber(value) || (typeof value === 'number' && radix !== 10)) {
    const wanted = radix === 10 ? 'a real number' : 'an integer';
    throw typeError(`%${kind} format: ${wanted} is required, not ${typeName(value)}`);
  }
  return integer(BigInt(Math.trunc(Number(value)) === Number(value) ? numberOf(value) : Math.trunc(Number(value))), {
    kind,
    isMarked,
    precision,
  });
}

function integer(
  value: bigint,
  { kind, isMarked, precision }: { kind: string; isMarked: boolean; precision?: number | undefined },
): string {
  const size = value < 0n ? -value : value;
  const digits = size.toString(RADIX[kind]).padStart(precision ?? 0, '0');
  const mark = isMarked && 'boxX'.includes(kind) ? `0${kind}` : '';
  return (value < 0n ? '-' : '') + mark + (kind === 'X' ? digits.toUpperCase() : digits);
}

const SPECIFICATION = /^(?:([^])?([<>=^]))?([-+ ])?z?(#)?(0)?(\d+)?([_,])?(?:\.(\d+))?([a-zA-Z%])?$/u;

/** Python's `format(value, specification)`. @throws PythonError when the specification is invalid or does not fit the value */
function formatted(value: Value, specification: string): string {
  if (specification === '') return str(value);
  const found = SPECIFICATION.exec(specification);
  if (!found) throw valueError(`Invalid format specifier '${specification}' for object of type '${typeName(value)}'`);
  const [, filler, aligned, sign = '', marked, zero, width, grouped, precision, kind] = found;
  const text = stringOf(value);
  const decimals = precision === undefined ? undefined : Number(precision);
  const size = Number(width ?? 0);
  if (text !== undefined) {
    if (kind !== undefined && kind !== 's') throw unknownFormat(kind, value);
    const shown = decimals === undefined ? text : charactersOf(text).slice(0, decimals).join('');
    return padded(shown, size, aligned ?? '<', filler ?? (zero === undefined ? ' ' : '0'));
  }
  if (!isNumber(value)) throw typeError(`unsupported format string passed to ${typeName(value)}.__format__`);
  const plain = grouping(numberText(value, kind, decimals, marked !== undefined), grouped);
  const shown = signed(plain, sign);
  const align = aligned ?? (zero === undefined ? '>' : '=');
  if (align === '=') return (filler ?? '0') === '0' ? zeroFilled(shown, size) : padded(shown, size, '>', filler);
  return padded(shown, size, align, filler);
}

function unknownFormat(kind: string, value: Value): PythonError {
  return valueError(`Unknown format code '${kind}' for object of type '${typeName(value)}'`);
}

function numberText(
  value: boolean | bigint | number,
  kind: string | undefined,
  decimals: number | undefined,
  isMarked: boolean,
): string {
  const number = numberOf(value);
  if (typeof value === 'boolean' && kind === undefined) return String(number);
  if (kind !== undefined && 'eEfFgG%'.includes(kind)) return floatOf(Number(number), kind, decimals, isMarked);
  if (typeof number === 'bigint') {
    if (kind === 'c') return String.fromCodePoint(Number(number));
    if (kind !== undefined && !'bdoxXn'.includes(kind)) throw unknownFormat(kind, value);
    return integer(number, { kind: kind === 'n' ? 'd' : (kind ?? 'd'), isMarked });
  }
  if (kind !== undefined && kind !== 'n') throw unknownFormat(kind, value);
  return decimals === undefined ? floatText(number) : general(number, decimals, isMarked);
}

function grouping(text: string, separator: string | undefined): string {
  if (separator === undefined) return text;
  return text.replace(/^(-?)(\d+)/, (_, sign: string, digits: string) => {
    return sign + digits.replace(/\B(?=(?:\d{3})+$)/g, separator);
  });
}

/**
 * Resolves the parts of a field in `str.format`, such as `{a.b[0]}`: `first` finds the argument `a`, `attribute` and `item` read from
 * the value before.
 */
export interface Fields {
  readonly first: (name: string) => Value;
  readonly attribute: (object: Value, name: string) => Value;
  readonly item: (object: Value, key: Value) => Value;
}

/** Python's `template.format(…)`. @throws PythonError when the template is invalid or a field cannot be read */
export function formatFields(template: string, fields: Fields): string {
  let at = 0;
  let numbered = 0;
  const number = (): string => String(numbered++);
  let text = '';
  while (at < template.length) {
    const c = template[at] ?? '';
    if ((c === '{' || c === '}') && template[at + 1] === c) {
      text += c;
      at += 2;
    } else if (c === '{') {
      const end = endOfField(template, at);
      text += field(template.slice(at + 1, end), fields, number);
      at = end + 1;
    } else if (c === '}') throw valueError("Single '}' encountered in format string");
    else {
      text += c;
      at++;
    }
  }
  return text;
}

function endOfField(template: string, start: number): number {
  let depth = 0;
  for (let at = start; at < template.length; at++) {
    if (template[at] === '{') depth++;
    if (template[at] === '}' && --depth === 0) return at;
  }
  throw valueError("Single '{' encountered in format string");
}

function field(source: string, fields: Fields, number: () => string): string {
  const found = /^([^!:]*)(?:!([rsa]))?(?::([^]*))?$/.exec(source);
  if (!found) throw valueError("expected ':' after conversion specifier");
  const [, path = '', conversion, specification = ''] = found;
  const value = fieldValue(path, fields, number);
  const shown = conversion === undefined ? value : conversion === 's' ? str(value) : repr(value);
  const inner = specification.replace(/\{([^{}]*)\}/g, (_, nested: string) => field(nested, fields, number));
  if (inner === '' && !isTrue(value) && conversion === undefined) return str(value);
  return formatted(shown, inner);
}

function fieldValue(path: string, fields: Fields, number: () => string): Value {
  const first = /^[^.[]*/.exec(path)?.[0] ?? '';
  let value = fields.first(first === '' ? number() : first);
  for (const [, attribute, key = ''] of path.slice(first.length).matchAll(/\.([^.[]+)|\[([^\]]+)\]/g)) {
    if (attribute !== undefined) value = fields.attribute(value, attribute);
    else value = fields.item(value, /^\d+$/.test(key) ? BigInt(key) : key);
  }
  return value;
}
