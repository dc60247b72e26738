/** Puts grammars together: each keeps its own rules, under names that no other has. */
import type { Automaton } from '../../grammar/automaton.ts';
import { stateTexts } from '../../grammar/automaton_rules.ts';
import { ruleNamed, type Expression, type Grammar } from '../../grammar/grammar.ts';

/** A grammar in the making. */
export class GrammarBuilder {
  readonly #rules = new Map<string, Expression>();
  #numParts = 0;

  /** Adds the rules of a grammar. Returns the expression of its texts. */
  add({ root, rules }: Grammar): Expression {
    const part = `${this.#numParts++}.`;
    for (const [name, body] of rules) this.#rules.set(part + name, renamed(body, part));
    return ruleNamed(part + root);
  }

  /** Adds a rule. Returns the expression of its texts. `make` is given that expression, for rules that name themselves. */
  rule(make: (self: Expression) => Expression): Expression {
    const name = `${this.#numParts++}`;
    this.#rules.set(name, make(ruleNamed(name)));
    return ruleNamed(name);
  }

  /**
   * Adds the texts of an automaton, each followed by `end`. Where a text has not ended, `aside` may come in place of its rest.
   */
  automaton({ states }: Automaton, end?: Expression, aside?: Expression): Expression {
    const part = `${this.#numParts++}.`;
    const next = (state: number): Expression => ruleNamed(part + String(state));
    for (const [i, state] of states.entries()) this.#rules.set(`${part}${i}`, stateTexts(state, next, { end, aside }));
    return ruleNamed(`${part}0`);
  }

  /** Returns the grammar of an expression with all the rules. */
  grammar(root: Expression): Grammar {
    return { root: 'root', rules: new Map([...this.#rules, ['root', root]]) };
  }
}

function renamed(expression: Expression, part: string): Expression {
  switch (expression.kind) {
    case 'text':
    case 'special':
    case 'set':
      return expression;
    case 'sequence':
    case 'choice':
      return { ...expression, items: expression.items.map((item) => renamed(item, part)) };
    case 'repeat':
      return { ...expression, item: renamed(expression.item, part) };
    case 'rule':
      return ruleNamed(part + expression.name);
  }
}
