/** Automata as rules of a grammar, a rule per state. */
import type { Automaton } from '../automaton.ts';
import type { CodePoints } from '../code_points.ts';
import { choice, EMPTY, type Expression, NEVER, sequence } from '../grammar.ts';
import type { Conversion } from './conversion.ts';

/**
 * Returns the texts of the automaton, then `end`. `spell` gives the characters of a set as they are written; `key` names the automaton: equal
 * keys are equal automata.
 */
export function automatonRules(
  { states }: Automaton,
  end: Expression,
  spell: (set: CodePoints) => Expression,
  conversion: Conversion,
  key: string,
): Expression {
  // References are made before the rules: states lead to each other.
  const bodies = states.map(({ isAccepting, transitions }) => (): Expression => {
    const steps = transitions.map(({ set, target }) => sequence(spell(set), reference(target)));
    return choice(isAccepting ? end : NEVER, ...steps);
  });
  const reference = (id: number): Expression => {
    const make = bodies[id];
    return make ? conversion.rule(`${key} state ${id}`, make) : EMPTY;
  };
  return reference(0);
}
