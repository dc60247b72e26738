/**
 * JSON values without a schema, and the pieces that schemas' grammars are made of. White space: at most one blank, after `,` and `:`, so the
 * text is as compact as that of `JSON.stringify` or as readable as Python's `json.dumps`.
 */
import { charactersOf, codePoints, complementOf, intersectionOf, unionOf, type CodePoints } from './code_points.ts';
import {
  choice,
  type Expression,
  type Grammar,
  oneOf,
  optional,
  repeat,
  ruleNamed,
  sequence,
  text,
} from './grammar.ts';

const BLANK = optional(text(' '));
/** The comma between two items, and its blank. */
export const COMMA = sequence(text(','), BLANK);
/** The colon after a key, and its blank. */
export const COLON = sequence(text(':'), BLANK);

const CONTROLS = codePoints([[0, 0x1f]]);
/** Characters that stand for themselves in a JSON string. */
const PLAIN = complementOf(unionOf(CONTROLS, charactersOf('"\\')));

const DIGITS = codePoints([[0x30, 0x39]]);
/** One decimal digit. */
export const DIGIT = oneOf(DIGITS);
/** A decimal digit that is not 0. */
export const NONZERO = oneOf(codePoints([[0x31, 0x39]]));

const HEX = oneOf(charactersOf('0123456789abcdefABCDEF'));
/** `\u` and four digits of a character that is no half of a surrogate pair. */
const UNICODE_ESCAPE = sequence(
  text('\\u'),
  choice(
    sequence(oneOf(charactersOf('0123456789abcefABCEF')), HEX, HEX, HEX),
    sequence(oneOf(charactersOf('dD')), oneOf(charactersOf('01234567')), HEX, HEX),
  ),
);

/** Any character of a JSON string, in any of its spellings. */
export const ANY_CHARACTER: Expression = choice(
  oneOf(PLAIN),
  sequence(text('\\'), oneOf(charactersOf('"\\/bfnrt'))),
  UNICODE_ESCAPE,
);

/** Any string. */
export const ANY_STRING = quoted(repeat(ANY_CHARACTER, 0));

/** Digits of an integer that every reader of JSON takes: more may become an infinity. */
export const MAX_INTEGER_DIGITS = 18;
/** Digits of the integer part and of the fraction of a number. */
export const MAX_NUMBER_DIGITS = 15;

/** Any integer, without `-0`. */
export const ANY_INTEGER = choice(
  text('0'),
  sequence(optional(text('-')), NONZERO, repeat(DIGIT, 0, MAX_INTEGER_DIGITS - 1)),
);
/** Any number; its size has a bound, because a double has one. */
export const ANY_NUMBER = sequence(
  optional(text('-')),
  choice(text('0'), sequence(NONZERO, repeat(DIGIT, 0, MAX_NUMBER_DIGITS - 1))),
  optional(sequence(text('.'), repeat(DIGIT, 1, MAX_NUMBER_DIGITS))),
  optional(sequence(oneOf(charactersOf('eE')), optional(oneOf(charactersOf('+-'))), repeat(DIGIT, 1, 2))),
);

/** Returns the string with this content. */
export function quoted(content: Expression): Expression {
  return sequence(text('"'), content, text('"'));
}

/** Returns a value's text as `JSON.stringify` writes it. */
export function literalJson(value: unknown): Expression {
  return text(JSON.stringify(value));
}

/** Returns one character of the set as it is spelled in a JSON string, escaped only where it must be. */
export function spelledSet(set: CodePoints): Expression {
  // Escapes that differ in their last character are one set of those: `\n` and `\t`, `\u0000` and `\u0001`.
  const lasts = new Map<string, string>();
  for (const [first, last] of intersectionOf(set, complementOf(PLAIN)))
    for (let code = first; code <= last; code++) {
      const escape = spelling(String.fromCodePoint(code));
      const beginning = escape.slice(0, -1);
      lasts.set(beginning, (lasts.get(beginning) ?? '') + escape.slice(-1));
    }
  const escaped = [...lasts].map(([beginning, ends]) => sequence(text(beginning), oneOf(charactersOf(ends))));
  return choice(oneOf(intersectionOf(set, PLAIN)), ...escaped);
}

function spelling(value: string): string {
  return JSON.stringify(value).slice(1, -1);
}

/** Returns an expression of characters as they are spelled in a JSON string. */
export function spelled(expression: Expression): Expression {
  switch (expression.kind) {
    case 'text':
      return text(spelling(expression.text));
    case 'set':
      return spelledSet(expression.set);
    case 'sequence':
      return sequence(...expression.items.map(spelled));
    case 'choice':
      return choice(...expression.items.map(spelled));
    case 'repeat':
      return repeat(spelled(expression.item), expression.min, expression.max);
    case 'special':
    case 'rule':
      return expression;
  }
}

/** Names of the rules of {@link anyJsonRules}. */
export const ANY_VALUE = 'any value';
/** The name of the rule of any object. */
export const ANY_OBJECT = 'any object';
/** The name of the rule of any array. */
export const ANY_ARRAY = 'any array';

/** The rules of any value, any object and any array. */
export const anyJsonRules: ReadonlyMap<string, Expression> = new Map([
  [
    ANY_VALUE,
    choice(
      ruleNamed(ANY_OBJECT),
      ruleNamed(ANY_ARRAY),
      ruleNamed('any string'),
      ANY_NUMBER,
      text('true'),
      text('false'),
      text('null'),
    ),
  ],
  ['any string', ANY_STRING],
  [ANY_OBJECT, listOf('{', sequence(ruleNamed('any string'), COLON, ruleNamed(ANY_VALUE)), '}')],
  [ANY_ARRAY, listOf('[', ruleNamed(ANY_VALUE), ']')],
]);

function listOf(open: string, item: Expression, close: string): Expression {
  return sequence(text(open), itemsThen(text(close), item, 0, undefined, true));
}

/** Returns `min` to `max` items with commas between them, and `end`; `isFirst`: no item is before them. */
export function itemsThen(
  end: Expression,
  item: Expression,
  min: number,
  max: number | undefined,
  isFirst: boolean,
): Expression {
  if (max === 0) return end;
  const next = sequence(COMMA, item);
  if (!isFirst) return sequence(repeat(next, min, max), end);
  const some = sequence(item, repeat(next, Math.max(0, min - 1), max === undefined ? undefined : max - 1), end);
  return min === 0 ? choice(end, some) : some;
}

/** Returns the grammar of any JSON `object`, or of any `value`. */
export function anyJsonGrammar(kind: 'object' | 'value'): Grammar {
  return { root: kind === 'object' ? ANY_OBJECT : ANY_VALUE, rules: anyJsonRules };
}
