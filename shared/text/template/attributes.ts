/** Reads the attributes, methods and items of values, as far as Jinja's sandbox lets a template reach them. */
import { formatFields } from './formatting.ts';
import { itemAt } from './operators.ts';
import { STRING_METHODS, indexOf } from './strings.ts';
import { repr } from './text.ts';
import type { Given } from './values.ts';
import {
  Dict,
  Markup,
  Method,
  PythonError,
  Thing,
  Tuple,
  Undefined,
  View,
  equals,
  isList,
  isNumber,
  iterate,
  listOf,
  missing,
  quoted,
  sizeOf,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';

/** Methods that change a dict or a list, by type name. The immutable sandbox denies access to these methods. */
const CHANGING: Readonly<Record<string, ReadonlySet<string>>> = {
  dict: new Set(['clear', 'pop', 'popitem', 'setdefault', 'update']),
  list: new Set(['append', 'clear', 'extend', 'insert', 'pop', 'remove', 'reverse', 'sort']),
};

/** `object.name`: an attribute, or else an item. */
export function getAttribute(object: Value, name: string): Value {
  if (object instanceof Undefined) object.fail();
  const attribute = attributeOf(object, name);
  const value = attribute === undefined ? itemOf(object, name) : attribute;
  return value === undefined ? missing(object, name) : value;
}

/** `object[key]`: an item, or else an attribute. */
export function getItem(object: Value, key: Value): Value {
  if (object instanceof Undefined) object.fail();
  const item = itemOf(object, key);
  if (item !== undefined) return item;
  const name = stringOf(key);
  const attribute = name === undefined ? undefined : attributeOf(object, name);
  return attribute === undefined ? missing(object, key) : attribute;
}

/** `object|attr(name)`: an attribute, and never an item. */
export function getOnlyAttribute(object: Value, name: string): Value {
  if (object instanceof Undefined) object.fail();
  const attribute = attributeOf(object, name);
  return attribute === undefined ? missing(object, name) : attribute;
}

function itemOf(object: Value, key: Value): Value | undefined {
  if (object instanceof Dict) return isHashable(key) ? object.get(key) : undefined;
  const index = typeof key === 'boolean' ? BigInt(key) : key;
  return typeof index === 'bigint' ? itemAt(object, index) : undefined;
}

function isHashable(key: Value): boolean {
  if (key === null || typeof key !== 'object') return true;
  if (key instanceof Tuple) return key.items.every(isHashable);
  return !isList(key) && !(key instanceof Dict) && !(key instanceof View);
}

/** Returns an attribute; undefined when there is none, and an `Undefined` when the sandbox denies access. */
function attributeOf(object: Value, name: string): Value | undefined {
  if (CHANGING[typeName(object)]?.has(name) || (name.startsWith('__') && name.endsWith('__') && name.length > 4)) {
    return unsafe(object, name);
  }
  if (stringOf(object) !== undefined) return stringMethod(object, name);
  if (isNumber(object)) return numberAttribute(object, name);
  if (object === null || typeof object === 'string') return undefined;
  if (isList(object) || object instanceof Tuple) return sequenceMethod(object, name);
  if (object instanceof Dict) return dictMethod(object, name);
  return object.attribute(name);
}

function unsafe(object: Value, name: string): Undefined {
  const message = `access to attribute ${quoted(name)} of ${quoted(typeName(object))} object is unsafe.`;
  return new Undefined(() => message, 'SecurityError');
}

function stringMethod(object: Value, name: string): Value | undefined {
  const text = stringOf(object) ?? '';
  if (name === 'format') return new Method(name, object, (given) => format(text, given));
  const method = Object.hasOwn(STRING_METHODS, name) ? STRING_METHODS[name] : undefined;
  if (!method) return undefined;
  return new Method(name, object, (given) => {
    const value = method(text, given);
    return object instanceof Markup && typeof value === 'string' ? new Markup(value) : value;
  });
}

function format(text: string, given: Given): string {
  return formatFields(text, {
    first: (name) => {
      if (/^\d+$/.test(name)) {
        const value = given.positional[Number(name)];
        if (value !== undefined) return value;
        throw new PythonError('IndexError', `Replacement index ${name} out of range for positional args tuple`);
      }
      const value = given.named.get(name);
      if (value === undefined) throw new PythonError('KeyError', quoted(name));
      return value;
    },
    attribute: getAttribute,
    item: getItem,
  });
}

function numberAttribute(object: boolean | bigint | number, name: string): Value | undefined {
  const isFloat = typeof object === 'number';
  if (name === 'real') return isFloat ? object : BigInt(object);
  if (name === 'imag') return isFloat ? 0 : 0n;
  if (name === 'numerator' && !isFloat) return BigInt(object);
  if (name === 'denominator' && !isFloat) return 1n;
  if (name === 'is_integer' && isFloat) return new Method(name, object, () => Number.isInteger(object));
  if (name !== 'bit_length' || isFloat) return undefined;
  return new Method(name, object, () => {
    const size = BigInt(object) < 0n ? -BigInt(object) : BigInt(object);
    return size === 0n ? 0n : BigInt(size.toString(2).length);
  });
}

function sequenceMethod(object: readonly Value[] | Tuple, name: string): Value | undefined {
  const items = object instanceof Tuple ? object.items : object;
  const method = (call: (given: Given) => Value): Method => new Method(name, object, call);
  if (name === 'count') {
    return method((given) => {
      const [wanted = null] = given.take('count', ['value'], 1);
      return BigInt(items.filter((item) => equals(item, wanted)).length);
    });
  }
  if (name === 'index') return method((given) => placeOf(object, items, given));
  if (name === 'copy' && !(object instanceof Tuple)) return method(() => [...items]);
  return object instanceof Tuple ? object.attribute(name) : undefined;
}

function placeOf(object: Value, items: readonly Value[], given: Given): bigint {
  const [wanted = null, start, stop] = given.take('index', ['value', 'start', 'stop'], 1);
  const place = (index: number): number => Math.max(0, index < 0 ? index + items.length : index);
  const from = place(indexOf(start) ?? 0);
  const to = place(indexOf(stop) ?? items.length);
  const at = items.findIndex((item, i) => i >= from && i < to && equals(item, wanted));
  if (at >= 0) return BigInt(at);
  if (object instanceof Tuple) throw valueError('tuple.index(x): x not in tuple');
  throw valueError(`${repr(wanted)} is not in list`);
}

function dictMethod(dict: Dict, name: string): Value | undefined {
  const method = (call: (given: Given) => Value): Method => new Method(name, dict, call);
  switch (name) {
    case 'get':
      return method((given) => {
        const [key = null, otherwise = null] = given.take('get', ['key', 'default'], 1);
        const value = dict.get(key);
        return value === undefined ? otherwise : value;
      });
    case 'items':
    case 'keys':
    case 'values':
      return method((given) => {
        given.take(name, []);
        return new View(`dict_${name}`, dict);
      });
    case 'copy':
      return method(() => new Dict(dict.entries()));
    case 'fromkeys':
      return method(dictFromKeys);
    default:
      return undefined;
  }
}

/**
 * Python's `dict.fromkeys`: returns a dict with the same value for every key. @throws PythonError when the keys cannot be iterated or
 * hashed
 */
export function dictFromKeys(given: Given): Dict {
  const [keys = null, value = null] = given.take('fromkeys', ['iterable', 'value'], 1);
  return new Dict(listOf(keys).map((key) => [key, value] as const));
}

/** Python's `dict(…)`. @throws PythonError for an argument that is neither a mapping nor an iterable of pairs */
export function dictOf(given: Given): Dict {
  const dict = new Dict();
  if (given.positional.length > 1) {
    throw typeError(`dict expected at most 1 argument, got ${given.positional.length}`);
  }
  for (const from of given.positional) addAll(dict, from);
  for (const [name, value] of given.named) dict.set(name, value);
  return dict;
}

function addAll(dict: Dict, from: Value): void {
  if (from instanceof Dict) for (const [key, value] of from.entries()) dict.set(key, value);
  else {
    let at = 0;
    for (const pair of iterate(from)) {
      if (sizeOf(pair) === undefined) {
        throw typeError(`cannot convert dictionary update sequence element #${at} to a sequence`);
      }
      const items = listOf(pair);
      const [key, value] = items;
      if (key === undefined || value === undefined || items.length !== 2) {
        throw valueError(`dictionary update sequence element #${at} has length ${items.length}; 2 is required`);
      }
      dict.set(key, value);
      at++;
    }
  }
}

/** Calls a value. @throws PythonError when the value cannot be called, or with what the call raises */
export function callValue(callee: Value, given: Given): Value {
  if (callee instanceof Undefined) callee.fail();
  const call = callee instanceof Thing ? callee.call : undefined;
  if (!call) throw typeError(`'${typeName(callee)}' object is not callable`);
  return call(given);
}
