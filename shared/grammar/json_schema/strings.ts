/**
 * Strings: patterns, formats and lengths. One of them alone is an expression; several are brought together by counting, where the expression
 * has one part of variable length, and else by automata.
 */
import { ANY_CHARACTER, ANY_STRING, quoted, spelled, spelledSet } from '../any_json.ts';
import { type Automaton, automatonOf, bothOf, isAutomaton, type Language, lengthsOf } from '../automaton.ts';
import { stateTexts } from '../automaton_rules.ts';
import { choice, type Expression, GrammarError, isNever, NEVER, repeat, sequence, text } from '../grammar.ts';
import { regexLanguage } from '../regex.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Facts, largest, pointerOf, smallest } from './facts.ts';
import { WITHOUT } from './schema_source.ts';
import { formats, integerFormats, openFormats, shortFormats } from './formats.ts';

/** Characters of a string with a bound (P1): longer texts do not end within a context. */
const MAX_LENGTH = 10_000;

/** Returns the strings that satisfy the facts. */
export function stringExpression(facts: Facts, conversion: Conversion): Expression {
  const [min, max] = lengthBounds(facts);
  const languages = languagesOf(facts, conversion, max !== undefined);
  if (max !== undefined && max < min) return NEVER;
  const key = `string ${min} ${max} ${[...languages.keys()].join(' ')}`;
  return conversion.rule(key, () => {
    try {
      return stringOf([...languages.values()], min, max, conversion, key);
    } catch (error) {
      throw located(error, pointerOf(facts, 'pattern', 'format', 'maxLength', 'minLength'));
    }
  });
}

/** Returns an error of a grammar as one of a schema. */
export function located(error: unknown, pointer: string): unknown {
  if (!(error instanceof GrammarError) || error instanceof SchemaError) return error;
  return new SchemaError(pointer.replaceAll(WITHOUT, ''), error.message, { cause: error });
}

function stringOf(
  languages: readonly Language[],
  min: number,
  max: number | undefined,
  conversion: Conversion,
  key: string,
): Expression {
  const [only] = languages;
  if (!only) return min === 0 && max === undefined ? ANY_STRING : quoted(repeat(ANY_CHARACTER, min, max));
  if (languages.length === 1 && !isAutomaton(only)) {
    const bounded = withLength(only, min, max);
    if (bounded) return quoted(spelled(bounded));
  }
  const automata = languages.map(automatonOf);
  if (min > 0 || max !== undefined) automata.push(lengthsOf(min, max));
  const [first = automatonOf(only), ...others] = automata;
  return automatonString(others.reduce(bothOf, first), conversion, key);
}

/** Returns the strings of an automaton. `key` names it: equal keys are equal automata. */
export function automatonString({ states }: Automaton, conversion: Conversion, key: string): Expression {
  const next = (id: number): Expression =>
    conversion.rule(`${key} state ${id}`, () => {
      const state = states[id];
      return state ? stateTexts(state, next, { end: text('"'), spell: spelledSet }) : NEVER;
    });
  return sequence(text('"'), next(0));
}

/** The bounds of the length, by all keywords. @throws SchemaError for one that is too large */
export function lengthBounds(facts: Facts): [min: number, max: number | undefined] {
  const [min, max] = [largest(facts, 'minLength') ?? 0, smallest(facts, 'maxLength')];
  for (const [keyword, length] of [
    ['minLength', min],
    ['maxLength', max ?? 0],
  ] as const)
    if (length > MAX_LENGTH)
      throw new SchemaError(
        pointerOf(facts, keyword),
        `${keyword} ${length} is too large to enforce: at most ${MAX_LENGTH}, or leave it out`,
      );
  return [min, max];
}

/** Languages of patterns and formats, by what they are called. `isShort`: with the short forms of formats, because a bound is to hold. */
export function languagesOf(facts: Facts, conversion: Conversion, isShort = false): Map<string, Language> {
  const found = new Map<string, Language>();
  for (const { value, pointer } of facts.keywords.get('pattern') ?? [])
    if (typeof value === 'string') found.set(`pattern ${value}`, patternAt(value, pointer, 'search'));
  for (const { value, pointer } of facts.keywords.get('format') ?? []) {
    if (typeof value !== 'string' || openFormats.has(value) || integerFormats.has(value)) continue;
    const format = (isShort ? shortFormats.get(value) : undefined) ?? formats.get(value);
    if (format !== undefined) found.set(`format ${value}`, patternAt(format, pointer, 'whole'));
    else if (value === 'regex') throw new SchemaError(pointer, 'the format "regex" cannot be enforced: leave it out');
    else conversion.ignore(pointer);
  }
  return found;
}

/** Returns the language of a regular expression in a schema. @throws SchemaError with its pointer */
export function patternAt(pattern: string, pointer: string, mode: 'whole' | 'search'): Language {
  try {
    return regexLanguage(pattern, mode);
  } catch (error) {
    throw located(error, pointer);
  }
}

/**
 * Returns the texts of the expression with a length in the bounds, if that only means other bounds for its one repetition; undefined
 * if it means more.
 */
function withLength(expression: Expression, min: number, max: number | undefined): Expression | undefined {
  const [shortest, longest] = lengthRange(expression);
  if (shortest >= min && longest <= (max ?? Infinity)) return expression;
  if (shortest > (max ?? Infinity) || longest < min) return NEVER;
  if (expression.kind === 'choice') {
    const items = expression.items.map((item) => withLength(item, min, max));
    return items.every((item) => item !== undefined) ? choice(...items) : undefined;
  }
  const items = expression.kind === 'sequence' ? expression.items : [expression];
  const variable = items.filter((item) => !isFixed(item));
  const [only] = variable;
  if (variable.length !== 1 || only?.kind !== 'repeat' || !isFixed(only.item)) return undefined;
  const [width] = lengthRange(only.item);
  const fixed = shortest - only.min * width;
  const least = Math.max(only.min, Math.ceil((min - fixed) / width));
  const most = Math.min(only.max ?? Infinity, max === undefined ? Infinity : Math.floor((max - fixed) / width));
  if (width === 0 || most < least) return NEVER;
  const bounded = repeat(only.item, least, most === Infinity ? undefined : most);
  return sequence(...items.map((item) => (item === only ? bounded : item)));
}

function isFixed(expression: Expression): boolean {
  const [shortest, longest] = lengthRange(expression);
  return shortest === longest;
}

/** The numbers of characters that an expression without rules can have. */
function lengthRange(expression: Expression): readonly [shortest: number, longest: number] {
  switch (expression.kind) {
    case 'text': {
      const { length } = Array.from(expression.text);
      return [length, length];
    }
    case 'special':
    case 'set':
      return [1, 1];
    case 'sequence':
      return expression.items
        .map(lengthRange)
        .reduce(([shortest, longest], [low, high]) => [shortest + low, longest + high], [0, 0]);
    case 'choice':
      return expression.items
        .filter((item) => !isNever(item))
        .map(lengthRange)
        .reduce(
          ([shortest, longest], [low, high]) => [Math.min(shortest, low), Math.max(longest, high)],
          [Infinity, 0],
        );
    case 'repeat': {
      const [low, high] = lengthRange(expression.item);
      return [low * expression.min, high === 0 ? 0 : high * (expression.max ?? Infinity)];
    }
    case 'rule':
      return [0, Infinity];
  }
}
