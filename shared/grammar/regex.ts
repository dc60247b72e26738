/**
 * Regular expressions of JavaScript as expressions of a grammar: the whole text matches, as vLLM and SGLang mean `regex`, or a part of it, as
 * JSON Schema means `pattern`. Lazy quantifiers match what greedy ones match; `^` and `$` are taken at the ends.
 */
import { type AST, RegExpParser, RegExpSyntaxError } from '@eslint-community/regexpp';
import { acceptsNothing, isAutomaton, type Language } from './automaton.ts';
import { stateTexts } from './automaton_rules.ts';
import { ALL_CODE_POINTS } from './code_points.ts';
import {
  choice,
  EMPTY,
  type Expression,
  type Grammar,
  GrammarError,
  oneOf,
  repeat,
  ruleNamed,
  sequence,
} from './grammar.ts';
import { lookAutomaton } from './look_automaton.ts';
import { refuse, setOf, singleCharacter } from './regex_sets.ts';
import { regexSource } from './regex_source.ts';

/** Characters of a regular expression (P1). */
const MAX_LENGTH = 20_000;
/** Groups within groups (P1). */
const MAX_GROUPS = 100;

/** Returns a grammar of the texts that the regular expression matches as a whole. @throws GrammarError */
export function regexGrammar(pattern: string): Grammar {
  const language = regexLanguage(pattern, 'whole');
  if (!isAutomaton(language)) return { root: 'root', rules: new Map([['root', language]]) };
  if (acceptsNothing(language)) throw new GrammarError('no text matches the regular expression');
  const nameOf = (state: number): string => (state === 0 ? 'root' : `state ${state}`);
  const next = (state: number): Expression => ruleNamed(nameOf(state));
  return { root: 'root', rules: new Map(language.states.map((state, i) => [nameOf(i), stateTexts(state, next)])) };
}

/**
 * Returns the texts that match: `whole`, or `search` for those with a part that matches. An automaton where the pattern has conditions on places
 * that expressions cannot hold. @throws GrammarError that names what cannot be enforced, and where
 */
export function regexLanguage(pattern: string, mode: 'whole' | 'search'): Language {
  if (pattern.length > MAX_LENGTH)
    throw new GrammarError(
      `the regular expression has ${pattern.length} characters, at most ${MAX_LENGTH} are possible`,
    );
  const { alternatives } = parse(regexSource(pattern));
  checkGroups(alternatives);
  const converter = new Converter(mode === 'whole' ? EMPTY : repeat(oneOf(ALL_CODE_POINTS), 0));
  const expression = converter.alternatives(alternatives, true, true);
  return converter.hasLooks ? lookAutomaton(alternatives, mode === 'search') : expression;
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

/** Converts the parts of a pattern. `atStart` and `atEnd`: nothing of the pattern is before, or after. */
class Converter {
  readonly #around: Expression;
  /** Whether the pattern has conditions on places that expressions cannot hold. */
  hasLooks = false;

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
        return oneOf(singleCharacter(element));
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
        this.hasLooks = true;
        return EMPTY;
    }
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
