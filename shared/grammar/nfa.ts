/** States of nondeterministic automata: steps on characters, and jumps without one. */
import type { CodePoints } from './code_points.ts';
import { GrammarError } from './grammar.ts';

/** States of a deterministic automaton (P1): each may cost the compiler of masks some 30 ms. */
export const MAX_STATES = 1000;
/** States before they are made deterministic (P1). */
const MAX_NFA_STATES = 20_000;

/** Returns the error of an automaton with too many states. */
export function tooLarge(): GrammarError {
  return new GrammarError(
    `the texts that are allowed need more than ${MAX_STATES} states: use shorter bounds or a simpler pattern`,
  );
}

/** A jump; with `condition` only where that holds. */
interface Jump<Condition> {
  readonly target: number;
  readonly condition?: Condition;
}

/** An automaton in the making. It grows from its end: whoever adds a part names the state after it, and gets the one before it. */
export class Nfa<Condition = never> {
  readonly steps: { readonly set: CodePoints; readonly target: number }[][] = [];
  readonly jumps: Jump<Condition>[][] = [];

  /** @throws GrammarError when there are too many */
  newState(): number {
    if (this.steps.length >= MAX_NFA_STATES) throw tooLarge();
    this.steps.push([]);
    this.jumps.push([]);
    return this.steps.length - 1;
  }

  /** Returns a state that leads to `next` with a character of the set. */
  step(set: CodePoints, next: number): number {
    const state = this.newState();
    this.steps[state]?.push({ set, target: next });
    return state;
  }

  /** Returns the state before `min` to `max` times what `add` adds; `max` undefined: without a limit. */
  repeat(add: (next: number) => number, min: number, max: number | undefined, next: number): number {
    let state = next;
    if (max === undefined) {
      state = this.newState();
      this.jumps[state]?.push({ target: next }, { target: add(state) });
    }
    for (let i = min; i < (max ?? min); i++) {
      const before = this.newState();
      this.jumps[before]?.push({ target: next }, { target: add(state) });
      state = before;
    }
    for (let i = 0; i < min; i++) state = add(state);
    return state;
  }
}
