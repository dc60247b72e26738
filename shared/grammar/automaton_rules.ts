/** Automata as rules of a grammar, a rule per state, so that the next character decides. */
import type { Automaton } from './automaton.ts';
import type { CodePoints } from './code_points.ts';
import { choice, EMPTY, type Expression, NEVER, oneOf, sequence } from './grammar.ts';

/** Texts around those of an automaton, and how its characters are written. */
export interface StateTexts {
  /** Text after each of the automaton's. */
  readonly end?: Expression | undefined;
  /** Text in place of the rest, where a text has not ended. */
  readonly aside?: Expression | undefined;
  readonly spell?: (set: CodePoints) => Expression;
}

/** Returns the texts from a state on. `next`: those from another one. */
export function stateTexts(
  { isAccepting, transitions }: Automaton['states'][number],
  next: (state: number) => Expression,
  { end = EMPTY, aside = NEVER, spell = oneOf }: StateTexts = {},
): Expression {
  const steps = transitions.map(({ set, target }) => sequence(spell(set), next(target)));
  return choice(isAccepting ? end : aside, ...steps);
}
