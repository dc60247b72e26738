/**
 * Regular expressions with conditions on places (looks ahead and behind, word boundaries, anchors anywhere) as a nondeterministic automaton
 * whose empty steps may have a condition.
 */
import type { AST } from '@eslint-community/regexpp';
import { ALL_CODE_POINTS, type CodePoints } from './code_points.ts';
import { Nfa } from './nfa.ts';
import { refuse, setOf, singleCharacter, WORD } from './regex_sets.ts';

/** Condition on a place: what comes after it, or what is before it, begins or ends with a text of a body. */
export interface Look {
  readonly kind: 'ahead' | 'behind';
  /** Index among the bodies of that kind. */
  readonly body: number;
  readonly isNegative: boolean;
}

/** Part of the automaton: the state it begins in and the state that ends it. */
export interface Body {
  readonly start: number;
  readonly accept: number;
}

type AnyElement = AST.Element | AST.QuantifiableElement;

/** The automaton of a pattern, with the bodies of its looks, which are conditions of jumps. */
export class LookNfa extends Nfa<Look> {
  /** Bodies of looks ahead. Any text may follow the accepting state. */
  readonly aheads: Body[] = [];
  /** Bodies of looks behind, inner ones first. Any text may be before them. */
  readonly behinds: Body[] = [];
  readonly whole: Body;
  readonly isSearch: boolean;
  /** Bodies of looks that are one character, by kind and set. */
  readonly #characters = new Map<string, number>();

  /** @param isSearch any text may be before and after a match */
  constructor(alternatives: readonly AST.Alternative[], isSearch: boolean) {
    super();
    this.isSearch = isSearch;
    const accept = this.newState();
    if (isSearch) this.#loop(accept);
    const start = this.#alternatives(alternatives, accept, false);
    this.whole = { start: isSearch ? this.#afterAny(start) : start, accept };
  }

  #loop(state: number): void {
    this.steps[state]?.push({ set: ALL_CODE_POINTS, target: state });
  }

  /** Returns a state that leads to `next` after any text. */
  #afterAny(next: number): number {
    const state = this.#jump(next);
    this.#loop(state);
    return state;
  }

  #jump(target: number, look?: Look): number {
    const state = this.newState();
    this.jumps[state]?.push(look ? { target, condition: look } : { target });
    return state;
  }

  /** `isBehind`: within a look behind. */
  #alternatives(alternatives: readonly AST.Alternative[], next: number, isBehind: boolean): number {
    const state = this.newState();
    for (const { elements } of alternatives) {
      const target = elements.reduceRight((to, element) => this.#add(element, to, isBehind), next);
      this.jumps[state]?.push({ target });
    }
    return state;
  }

  /** Returns the state from which `element` leads to `next`. */
  #add(element: AnyElement, next: number, isBehind: boolean): number {
    switch (element.type) {
      case 'Character':
        return this.step(singleCharacter(element), next);
      case 'CharacterSet':
      case 'CharacterClass':
        return this.step(setOf(element), next);
      case 'Group':
      case 'CapturingGroup':
        return this.#alternatives(element.alternatives, next, isBehind);
      case 'Quantifier':
        return this.repeat(
          (to) => this.#add(element.element, to, isBehind),
          element.min,
          element.max === Infinity ? undefined : element.max,
          next,
        );
      case 'Backreference':
        return refuse(`the backreference ${element.raw}`, element, 'no grammar can repeat a match');
      case 'ExpressionCharacterClass':
        return refuse('the class', element, 'write it without && and --');
      case 'Assertion':
        return this.#assertion(element, next, isBehind);
    }
  }

  #assertion(element: AST.Assertion, next: number, isBehind: boolean): number {
    if (isBehind && element.kind !== 'lookbehind' && element.kind !== 'start')
      return refuse(
        `${element.raw.slice(0, 40)} within a lookbehind`,
        element,
        'what is before a place cannot be told from what comes after it',
      );
    switch (element.kind) {
      case 'start':
        return this.#jump(next, this.#character('behind', ALL_CODE_POINTS, true));
      case 'end':
        return this.#jump(next, this.#character('ahead', ALL_CODE_POINTS, true));
      case 'word':
        return this.#wordBoundary(element.negate, next);
      case 'lookahead':
      case 'lookbehind': {
        const kind = element.kind === 'lookahead' ? 'ahead' : 'behind';
        const body = this.#body(kind, (accept) =>
          this.#alternatives(element.alternatives, accept, isBehind || kind === 'behind'),
        );
        return this.#jump(next, { kind, body, isNegative: element.negate });
      }
    }
  }

  /** A word's character is on one side of the place and not on the other; `isNegative`: on both or on none. */
  #wordBoundary(isNegative: boolean, next: number): number {
    const state = this.newState();
    for (const isBefore of [false, true]) {
      const isAfter = isBefore === isNegative;
      const after = this.#jump(next, this.#character('ahead', WORD, !isAfter));
      this.jumps[state]?.push({ target: this.#jump(after, this.#character('behind', WORD, !isBefore)) });
    }
    return state;
  }

  /** Returns the condition that a character of the set is on that side of the place. */
  #character(kind: Look['kind'], set: CodePoints, isNegative: boolean): Look {
    const key = `${kind} ${JSON.stringify(set)}`;
    const body = this.#characters.get(key) ?? this.#body(kind, (accept) => this.step(set, accept));
    this.#characters.set(key, body);
    return { kind, body, isNegative };
  }

  #body(kind: Look['kind'], add: (accept: number) => number): number {
    const accept = this.newState();
    const start = add(accept);
    const bodies = kind === 'ahead' ? this.aheads : this.behinds;
    if (kind === 'ahead') this.#loop(accept);
    bodies.push({ start: kind === 'ahead' ? start : this.#afterAny(start), accept });
    return bodies.length - 1;
  }
}
