/**
 * Prints a grammar as the EBNF of xgrammar 0.1.27, in the form that its compiler and its masks are fast with and that its parser cannot
 * misread:
 *
 * - Each printed rule is a list of alternatives, each a list of texts, byte classes and rule names: no parentheses, whose nesting costs the
 *   library's stack of 64 KB, and no `*`, `+`, `?` or `{}`.
 * - Rules are right-linear: a repetition is a rule that ends with itself or with its continuation. So `"` text `"` is one automaton, and a
 *   token that ends the text is judged when the grammar is compiled. A rule that ended before the quote would leave every longer token to
 *   be judged at each step (0.03 ms for a mask against 70 ms, 128k tokens).
 * - Sets are byte classes, exact to the byte: the library's own positive classes match one byte per code point, its negated ones
 *   accept bytes that are no UTF-8.
 * - A special token is the bytes of `special_token_bytes.ts`, which no text has.
 */
import type { CodePoints } from './code_points.ts';
import { checkGrammar } from './check_grammar.ts';
import { printAtLeast, printCounter } from './ebnf_counter.ts';
import {
  byteClass,
  EbnfRules,
  type ExpressionPrinter,
  type Following,
  joinParts,
  literal,
  specialTokenParts,
} from './ebnf_rules.ts';
import { type Expression, type Grammar, partsOf } from './grammar.ts';
import { byteAutomaton, type ByteNode } from './utf8_bytes.ts';

/** Repetitions up to this number are printed step by step: each step of a wide set costs the compiler 35 ms at 128k tokens. */
const MAX_STEPS = 32;
const LAST_ASCII = 0x7f;

/** Returns the grammar as EBNF text whose first rule is `root`. @throws GrammarError when the grammar is invalid or beyond a bound */
export function toEbnf(grammar: Grammar): string {
  checkGrammar(grammar);
  return new EbnfPrinter(grammar).print();
}

class EbnfPrinter implements ExpressionPrinter {
  readonly rules = new EbnfRules();
  readonly #grammar: Grammar;
  readonly #names = new Map<string, string>();
  readonly #sets = new Map<CodePoints, readonly string[]>();
  readonly #loops = new Map<Expression, Map<string, string>>();

  constructor(grammar: Grammar) {
    this.#grammar = grammar;
  }

  print(): string {
    const { root, rules } = this.#grammar;
    this.#names.set(root, 'root');
    for (const name of rules.keys()) if (name !== root) this.#names.set(name, this.rules.newName('r'));
    const isUsed = [...rules.values()].some((body) => uses(body, root));
    for (const [name, body] of rules) {
      const following = name === root && !isUsed ? 'end' : undefined;
      this.rules.define(this.#name(name), this.alternatives(body, '', following));
    }
    return this.rules.text();
  }

  #name(rule: string): string {
    return this.#names.get(rule) ?? rule;
  }

  bodyOf(rule: string): Expression | undefined {
    return this.#grammar.rules.get(rule);
  }

  alternatives(expression: Expression, next: string, following?: Following): string[] {
    switch (expression.kind) {
      case 'text':
        return [joinParts(literal(expression.text), next)];
      case 'special':
        return [joinParts(specialTokenParts(expression.name), next)];
      case 'set':
        return this.#setAlternatives(expression.set, next);
      case 'rule':
        return [joinParts(this.#name(expression.name), next)];
      case 'choice':
        return expression.items.flatMap((item) => this.alternatives(item, next, following));
      case 'sequence':
        return this.#sequence(expression.items, next, following);
      case 'repeat':
        return this.#repeat(expression, next, following);
    }
  }

  /** A set is printed at each step of a repetition, and its bytes are the same each time. */
  #setAlternatives(set: CodePoints, next: string): string[] {
    const printed = this.#sets.get(set) ?? this.#byteAlternatives(byteAutomaton(set), '', new Map());
    this.#sets.set(set, printed);
    return printed.map((bytes) => joinParts(bytes, next));
  }

  #byteAlternatives({ edges }: ByteNode, next: string, names: Map<number, string>): string[] {
    return edges.map((edge) => {
      const bytes = byteClass(edge.ranges);
      return edge.next ? joinParts(bytes, joinParts(this.#tail(edge.next, names), next)) : joinParts(bytes, next);
    });
  }

  /** Bytes that complete a character: in line when there is one way, else a rule. */
  #tail(node: ByteNode, names: Map<number, string>): string {
    const known = names.get(node.id);
    if (known !== undefined) return known;
    const alternatives = this.#byteAlternatives(node, '', names);
    const [only = ''] = alternatives;
    const printed = alternatives.length === 1 ? only : this.rules.shared(alternatives);
    names.set(node.id, printed);
    return printed;
  }

  #sequence(items: readonly Expression[], next: string, following: Following): string[] {
    let alternatives = [next];
    let after = following;
    for (const item of items.toReversed()) {
      const [only = ''] = alternatives;
      const inLine = alternatives.length === 1 ? this.#inLine(item) : undefined;
      if (inLine !== undefined) alternatives = [joinParts(inLine, only)];
      else alternatives = this.alternatives(item, this.rules.continuation(alternatives), after);
      after = item;
    }
    return alternatives;
  }

  /** Returns an expression that is one element of an alternative. */
  #inLine(item: Expression): string | undefined {
    if (item.kind === 'text') return literal(item.text);
    if (item.kind === 'special') return specialTokenParts(item.name);
    if (item.kind === 'rule') return this.#name(item.name);
    if (item.kind !== 'set' || (item.set.at(-1)?.[1] ?? 0) > LAST_ASCII) return undefined;
    return byteClass(item.set);
  }

  #repeat({ item, min, max }: Extract<Expression, { kind: 'repeat' }>, next: string, following: Following): string[] {
    if (max === undefined) {
      let alternatives = [this.#loop(item, next)];
      if (min > MAX_STEPS) return printAtLeast(this, item, min, this.#loop(item, next), following);
      for (let i = 0; i < min; i++) alternatives = this.alternatives(item, this.rules.continuation(alternatives));
      return alternatives;
    }
    if (max > MAX_STEPS) return printCounter(this, { item, min, max }, next, following);
    return this.steps(item, min, max, next);
  }

  steps(item: Expression, min: number, max: number, next: string): string[] {
    let alternatives = [next];
    for (let i = max - 1; i >= 0; i--) {
      const more = this.alternatives(item, this.rules.continuation(alternatives));
      alternatives = i >= min ? [next, ...more] : more;
    }
    return alternatives;
  }

  #loop(item: Expression, next: string): string {
    const byNext = this.#loops.get(item) ?? new Map<string, string>();
    this.#loops.set(item, byNext);
    const known = byNext.get(next);
    if (known !== undefined) return known;
    const name = this.rules.newName('l');
    byNext.set(next, name);
    this.rules.define(name, [next, ...this.alternatives(item, name).filter((one) => one !== name)]);
    return name;
  }
}

function uses(body: Expression, rule: string): boolean {
  return body.kind === 'rule' ? body.name === rule : partsOf(body).some((part) => uses(part, rule));
}
