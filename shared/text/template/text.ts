/** Values as text: Python's `str`, `repr` and `json.dumps`. */
import {
  Callable,
  Dict,
  Markup,
  Method,
  PythonError,
  Range,
  Tuple,
  Undefined,
  View,
  isList,
  quoted,
  typeError,
  typeName,
  type Value,
} from './values.ts';

/** Python's `str(value)`: returns the text that `{{ value }}` prints, which is empty for an undefined value. */
export function str(value: Value): string {
  if (typeof value === 'string') return value;
  if (value instanceof Markup) return value.text;
  return value instanceof Undefined ? '' : repr(value);
}

/** Python's `repr(value)`, with 0x0 for every address in memory. @throws PythonError `ValueError` for an int of more than 4300 digits */
export function repr(value: Value): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'bigint') return intText(value);
  if (typeof value === 'number') return floatText(value);
  if (typeof value === 'string') return quoted(value);
  if (isList(value)) return `[${value.map(repr).join(', ')}]`;
  if (value instanceof Tuple) return `(${value.items.map(repr).join(', ')}${value.items.length === 1 ? ',' : ''})`;
  if (value instanceof Dict) return dictText(value);
  if (value instanceof View) return `${value.type}(${repr(value.items())})`;
  if (value instanceof Range) return `range(${value.start}, ${value.stop}${value.step === 1 ? '' : `, ${value.step}`})`;
  if (value instanceof Markup) return `Markup(${quoted(value.text)})`;
  if (value instanceof Undefined) return 'Undefined';
  if (value instanceof Method) return `<built-in method ${value.name} of ${typeName(value.of)} object at 0x0>`;
  const shown = value.shown(repr);
  if (shown !== undefined) return shown;
  if (value instanceof Callable) return `<function ${value.name} at 0x0>`;
  return `<${value.module === undefined ? '' : `${value.module}.`}${value.type} object at 0x0>`;
}

function dictText(dict: Dict): string {
  return `{${Array.from(dict.entries(), ([key, value]) => `${repr(key)}: ${repr(value)}`).join(', ')}}`;
}

function intText(value: bigint): string {
  const text = String(value);
  if (text.length <= 4300) return text;
  throw new PythonError('ValueError', 'Exceeds the limit (4300 digits) for integer string conversion');
}

/** Returns the shortest text that parses to the same float, as Python's `repr` does. */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value < 0 ? '-inf' : 'inf';
  if (Object.is(value, -0)) return '-0.0';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) return exponentText(value.toExponential());
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

/** Pads the exponent of a number's text to at least two digits, as Python does. */
export function exponentText(exponential: string): string {
  return exponential.replace(/e([+-])(\d)$/, 'e$10$2');
}

/** Options of `json.dumps`. */
export interface JsonStyle {
  readonly isAscii: boolean;
  /** Indentation of one nesting level; undefined writes the whole value on one line. */
  readonly indent: string | undefined;
  readonly itemSeparator: string;
  readonly keySeparator: string;
  readonly isSorted: boolean;
}

/** Python's `json.dumps`. @throws PythonError `TypeError` for a value that JSON cannot represent */
export function json(value: Value, style: JsonStyle, depth = 0): string {
  if (value === null || typeof value === 'boolean') return String(value);
  if (typeof value === 'bigint') return intText(value);
  if (typeof value === 'number') return jsonFloat(value);
  if (typeof value === 'string') return jsonString(value, style.isAscii);
  if (value instanceof Markup) return jsonString(value.text, style.isAscii);
  const items = isList(value) ? value : value instanceof Tuple ? value.items : undefined;
  if (items)
    return enclosed(
      '[',
      items.map((item) => json(item, style, depth + 1)),
      ']',
      style,
      depth,
    );
  if (!(value instanceof Dict)) throw typeError(`Object of type ${typeName(value)} is not JSON serializable`);
  const entries = jsonEntries(value, style);
  const inner = entries.map(
    ([key, item]) => jsonString(key, style.isAscii) + style.keySeparator + json(item, style, depth + 1),
  );
  return enclosed('{', inner, '}', style, depth);
}

function enclosed(open: string, items: readonly string[], close: string, style: JsonStyle, depth: number): string {
  if (style.indent === undefined || items.length === 0) return open + items.join(style.itemSeparator) + close;
  const line = `\n${style.indent.repeat(depth)}`;
  return open + line + style.indent + items.join(style.itemSeparator + line + style.indent) + line + close;
}

function jsonEntries(dict: Dict, style: JsonStyle): [key: string, value: Value][] {
  const entries = Array.from(dict.entries());
  if (style.isSorted) entries.sort(([a], [b]) => orderOfKeys(a, b));
  return entries.map(([key, value]) => [jsonKey(key), value]);
}

function orderOfKeys(a: Value, b: Value): number {
  if (typeof a === 'string' && typeof b === 'string') return a < b ? -1 : a > b ? 1 : 0;
  if (typeof a === 'bigint' && typeof b === 'bigint') return a < b ? -1 : a > b ? 1 : 0;
  throw typeError(`'<' not supported between instances of '${typeName(b)}' and '${typeName(a)}'`);
}

function jsonKey(key: Value): string {
  if (typeof key === 'string') return key;
  if (key === null || typeof key === 'boolean') return String(key);
  if (typeof key === 'bigint') return intText(key);
  if (typeof key === 'number') return jsonFloat(key);
  if (key instanceof Markup) return key.text;
  throw typeError(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function jsonFloat(value: number): string {
  if (Number.isFinite(value)) return floatText(value);
  return Number.isNaN(value) ? 'NaN' : value < 0 ? '-Infinity' : 'Infinity';
}

function jsonString(text: string, isAscii: boolean): string {
  const plain = JSON.stringify(text);
  if (!isAscii) return plain;
  return plain.replace(/[\x7f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
