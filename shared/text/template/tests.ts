/** Jinja's tests: the names that may follow `is`. */
import { arithmetic, compare } from './operators.ts';
import { isLower, isUpper } from './strings.ts';
import { str } from './text.ts';
import type { Comparison } from './syntax.ts';
import type { Given } from './values.ts';
import {
  Dict,
  Markup,
  Range,
  Stream,
  Thing,
  Undefined,
  View,
  equals,
  isNumber,
  itemsOf,
  sizeOf,
  stringOf,
  type Value,
} from './values.ts';

type Test = (value: Value, given: Given) => boolean;

const plain =
  (judge: (value: Value) => boolean): Test =>
  (value, given) => {
    given.take('test', []);
    return judge(value);
  };

const comparing =
  (operator: Comparison): Test =>
  (value, given) => {
    const [other = null] = given.take(operator, ['other'], 1);
    return compare(operator, value, other);
  };

function rest(value: Value, by: Value): Value {
  return arithmetic('%', value, by);
}

/** Whether two values are the same object. Text and numbers have no identity here, so equal ones count as the same. */
function isSame(value: Value, other: Value): boolean {
  return value === other;
}

function isSequence(value: Value): boolean {
  return sizeOf(value) !== undefined && !(value instanceof View);
}

const equal = comparing('==');
const notEqual = comparing('!=');
const greater = comparing('>');
const greaterOrEqual = comparing('>=');
const less = comparing('<');
const lessOrEqual = comparing('<=');

/** Jinja's tests by name, except `filter` and `test`, which `applyTest` handles. @throws PythonError for wrong arguments or operands */
export const TESTS: Readonly<Record<string, Test>> = {
  odd: plain((value) => equals(rest(value, 2n), 1n)),
  even: plain((value) => equals(rest(value, 2n), 0n)),
  divisibleby: (value, given) => equals(rest(value, given.take('divisibleby', ['num'], 1)[0] ?? null), 0n),
  defined: plain((value) => !(value instanceof Undefined)),
  undefined: plain((value) => value instanceof Undefined),
  none: plain((value) => value === null),
  boolean: plain((value) => typeof value === 'boolean'),
  false: plain((value) => value === false),
  true: plain((value) => value === true),
  integer: plain((value) => typeof value === 'bigint'),
  float: plain((value) => typeof value === 'number'),
  lower: plain((value) => isLower(str(value))),
  upper: plain((value) => isUpper(str(value))),
  string: plain((value) => stringOf(value) !== undefined),
  mapping: plain((value) => value instanceof Dict),
  number: plain(isNumber),
  sequence: plain(isSequence),
  iterable: plain((value) => value instanceof Stream || itemsOf(value) !== undefined || value instanceof Range),
  callable: plain((value) => value instanceof Undefined || (value instanceof Thing && value.call !== undefined)),
  sameas: (value, given) => isSame(value, given.take('sameas', ['other'], 1)[0] ?? null),
  escaped: plain((value) => value instanceof Markup),
  in: comparing('in'),
  '==': equal,
  eq: equal,
  equalto: equal,
  '!=': notEqual,
  ne: notEqual,
  '>': greater,
  gt: greater,
  greaterthan: greater,
  ge: greaterOrEqual,
  '>=': greaterOrEqual,
  '<': less,
  lt: less,
  lessthan: less,
  '<=': lessOrEqual,
  le: lessOrEqual,
};
