/**
 * Regular expressions of JavaScript as expressions of a grammar: the whole text matches, as vLLM and SGLang mean `regex`, or a part of it, as
 * JSON Schema means `pattern`. Lazy quantifiers match what greedy ones match; `^` and `$` are taken at the ends.
 */
import { type AST, RegExpParser, RegExpSyntaxError } from '@eslint-community/regexpp';
import { ALL_CODE_POINTS, type CodePoints, charactersOf, codePoints, complementOf, unionOf } from './code_points.ts';
import { propertySet } from './code_point_properties.ts';
import {
  choice,
  EMPTY,
  type Expression,
  type Grammar,
  GrammarError,
  oneOf,
  repeat,
  sequence,
  text,
} from './grammar.ts';
import { regexSource } from './regex_source.ts';

/** Characters of a regular expression (P1). */
const MAX_LENGTH = 20_000;
/** Groups within groups (P1). */
const MAX_GROUPS = 100;

const DIGITS = codePoints([[0x30, 0x39]]);
const WORD = unionOf(
  DIGITS,
  codePoints([
    [0x41, 0x5a],
    [0x5f, 0x5f],
    [0x61, 0x7a],
  ]),
);
const SPACES = unionOf(
  charactersOf('\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff'),
  codePoints([[0x2000, 0x200a]]),
);
const LINE_ENDS = charactersOf('\n\r\u2028\u2029');

/** Returns a grammar of the texts that the regular expression matches as a whole. @throws GrammarError */
export function regexGrammar(pattern: string): Grammar {
  return { root: 'root', rules: new Map([['root', regexExpression(pattern, 'whole')]]) };
}

/**
 * Returns an expression of the texts that match: `whole`, or `search` for those with a part that matches. @throws GrammarError that names
 * what cannot be enforced, and where
 */
export function regexExpression(pattern: string, mode: 'whole' | 'search'): Expression {
  if (pattern.length > MAX_LENGTH)
    throw new GrammarError(
      `the regular expression has ${pattern.length} characters, at most ${MAX_LENGTH} are possible`,
    );
  const around = mode === 'whole' ? EMPTY : repeat(oneOf(ALL_CODE_POINTS), 0);
  const { alternatives } = parse(regexSource(pattern));
  checkGroups(alternatives);
  return new Converter(around).alternatives(alternatives, true, true);
}

function parse(source: string): AST.Pattern {
  try {
    return new RegExpParser({ ecmaVersion: 2024 }).parsePattern(source, 0, source.length, { unicode: true });
  } catch (error) {
    if (error instanceof RegExpSyntaxError || error instanceof RangeError)
      throw new GrammarError(shownError(error), { cause: error });
    throw error;
  }
}

/** The parser's message without the whole pattern in it. */
function shownError(error: Error): string {
  if (error instanceof RangeError) return 'the regular expression nests too deep';
  const reason = error.message.slice(error.message.lastIndexOf(': ') + 2);
  const at = error instanceof RegExpSyntaxError ? ` at ${error.index}` : '';
  return `the regular expression is invalid${at}: ${reason.slice(0, 100)}`;
}

function checkGroups(alternatives: readonly AST.Alternative[]): void {
  const open: [AST.Element | AST.QuantifiableElement, number][] = [];
  const add = (all: readonly AST.Alternative[], depth: number): void => {
    for (const { elements } of all) for (const element of elements) open.push([element, depth]);
  };
  add(alternatives, 1);
  for (let next = open.pop(); next; next = open.pop()) {
    const [element, depth] = next;
    if (depth > MAX_GROUPS)
      throw new GrammarError(`the regular expression has more than ${MAX_GROUPS} groups within each other`);
    if (element.type === 'Quantifier') open.push([element.element, depth]);
    else if ('alternatives' in element) add(element.alternatives, depth + 1);
  }
}

function refuse(what: string, { start }: AST.Node, remedy: string): never {
  throw new GrammarError(`${what} at ${start} of the regular expression cannot be enforced: ${remedy}`);
}

/** Converts the parts of a pattern. `atStart` and `atEnd`: nothing of the pattern is before, or after. */
class Converter {
  readonly #around: Expression;

  /** @param around what may be before and after a match that is not anchored */
  constructor(around: Expression) {
    this.#around = around;
  }

  alternatives(alternatives: readonly AST.Alternative[], atStart: boolean, atEnd: boolean): Expression {
    return choice(...alternatives.map(({ elements }) => this.#alternative(elements, atStart, atEnd)));
  }

  #alternative(elements: readonly AST.Element[], atStart: boolean, atEnd: boolean): Expression {
    const start = atStart ? elements.findIndex((element) => !isEdge(element, 'start')) : 0;
    const first = start < 0 ? elements.length : start;
    let last = elements.length;
    while (atEnd && last > first && isEdge(elements[last - 1], 'end')) last--;
    const inner = elements.slice(first, last);
    // A group at an end may have the anchors of its alternatives; else what surrounds the match is added here.
    const startsInside = atStart && first === 0 && hasEdge(inner[0], 'start');
    const endsInside = atEnd && last === elements.length && hasEdge(inner.at(-1), 'end');
    const items = inner.map((element, i) =>
      this.#element(element, startsInside && i === 0, endsInside && i === inner.length - 1),
    );
    return sequence(
      atStart && first === 0 && !startsInside ? this.#around : EMPTY,
      ...items,
      atEnd && last === elements.length && !endsInside ? this.#around : EMPTY,
    );
  }

  #element(element: AST.Element | AST.QuantifiableElement, atStart: boolean, atEnd: boolean): Expression {
    switch (element.type) {
      case 'Character':
        return characterOf(element);
      case 'CharacterSet':
      case 'CharacterClass':
        return oneOf(setOf(element));
      case 'Group':
      case 'CapturingGroup':
        return this.alternatives(element.alternatives, atStart, atEnd);
      case 'Quantifier':
        return repeat(
          this.#element(element.element, false, false),
          element.min,
          element.max === Infinity ? undefined : element.max,
        );
      case 'Backreference':
        return refuse(`the backreference ${element.raw}`, element, 'no grammar can repeat a match');
      case 'ExpressionCharacterClass':
        return refuse('the class', element, 'write it without && and --');
      case 'Assertion':
        return refuseAssertion(element);
    }
  }
}

function refuseAssertion(element: AST.Assertion): never {
  switch (element.kind) {
    case 'lookahead':
    case 'lookbehind':
      return refuse(
        `the ${element.kind} ${element.raw.slice(0, 40)}`,
        element,
        'write what the text is, not what it is not',
      );
    case 'word':
      return refuse(`the word boundary ${element.raw}`, element, 'write the characters beside it');
    case 'start':
    case 'end':
      return refuse(
        `the anchor ${element.raw}`,
        element,
        'it can only be at the beginning or the end of the whole text',
      );
  }
}

function isEdge(element: AST.Element | undefined, kind: 'start' | 'end'): boolean {
  return element?.type === 'Assertion' && element.kind === kind;
}

/** Whether a group has the anchor at that end of one of its alternatives. */
function hasEdge(element: AST.Element | undefined, kind: 'start' | 'end'): boolean {
  if (element?.type !== 'Group' && element?.type !== 'CapturingGroup') return false;
  return element.alternatives.some(({ elements }) => {
    const outer = kind === 'start' ? elements[0] : elements.at(-1);
    return isEdge(outer, kind) || hasEdge(outer, kind);
  });
}

function characterOf({ value, start }: AST.Character): Expression {
  if (value >= 0xd800 && value <= 0xdfff)
    throw new GrammarError(`the regular expression has half a surrogate pair at ${start}, which UTF-8 cannot express`);
  return text(String.fromCodePoint(value));
}

function setOf(element: AST.CharacterSet | AST.CharacterClass | AST.CharacterClassElement): CodePoints {
  switch (element.type) {
    case 'Character':
      return codePoints([[element.value, element.value]]);
    case 'CharacterClassRange':
      return codePoints([[element.min.value, element.max.value]]);
    case 'CharacterClass':
      return negatedIf(element.negate, unionOf(...element.elements.map(setOf)));
    case 'CharacterSet':
      return characterSet(element);
    case 'ExpressionCharacterClass':
    case 'ClassStringDisjunction':
      return refuse('the class', element, 'write it without && and --');
  }
}

function characterSet(element: AST.CharacterSet): CodePoints {
  switch (element.kind) {
    case 'any':
      return complementOf(LINE_ENDS);
    case 'digit':
      return negatedIf(element.negate, DIGITS);
    case 'word':
      return negatedIf(element.negate, WORD);
    case 'space':
      return negatedIf(element.negate, SPACES);
    case 'property':
      return negatedIf(
        element.negate,
        propertySet(element.value === null ? element.key : `${element.key}=${element.value}`),
      );
  }
}

function negatedIf(isNegated: boolean, set: CodePoints): CodePoints {
  return isNegated ? complementOf(set) : set;
}
