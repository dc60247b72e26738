/**
 * Regular languages of characters as deterministic automata: for what expressions cannot say, that a text is in two languages, or not in one.
 * States are bounded; expressions here have no rules.
 */
import {
  ALL_CODE_POINTS,
  type CodePoints,
  complementOf,
  classesOf,
  hasCodePoint,
  intersectionOf,
  unionOf,
} from './code_points.ts';
import type { Expression } from './grammar.ts';
import { MAX_STATES, Nfa, tooLarge } from './nfa.ts';

/** A transition on any character of a set; those of a state are disjoint. */
interface Transition {
  readonly set: CodePoints;
  readonly target: number;
}

/** A state by its index, 0 first. */
interface State {
  readonly isAccepting: boolean;
  readonly transitions: readonly Transition[];
}

/** A deterministic automaton. Every state but the first leads to an accepting one. */
export interface Automaton {
  readonly states: readonly State[];
}

/** A set of texts: an expression without rules, or an automaton for what expressions cannot say. */
export type Language = Expression | Automaton;

/** Whether a language is an automaton. */
export function isAutomaton(language: Language): language is Automaton {
  return 'states' in language;
}

/** Returns the automaton of a language. @throws GrammarError when it needs too many states */
export function automatonOf(language: Language): Automaton {
  if (isAutomaton(language)) return language;
  const nfa = new ExpressionNfa();
  const accept = nfa.newState();
  const start = nfa.add(language, accept);
  return nfa.determinise(start, accept);
}

/** Returns the automaton of the texts in both. */
export function bothOf(a: Automaton, b: Automaton): Automaton {
  return explore<Pair>([0, 0], ([i, j]) => {
    const [left, right] = [a.states[i], b.states[j]];
    if (!left || !right) return { isAccepting: false, edges: [] };
    const edges = left.transitions.flatMap(({ set, target }) =>
      right.transitions.map((other) => ({
        set: intersectionOf(set, other.set),
        target: [target, other.target] as const,
      })),
    );
    return { isAccepting: left.isAccepting && right.isAccepting, edges };
  });
}

/** Returns the automaton of all other texts. */
export function othersOf({ states }: Automaton): Automaton {
  const SINK = -1;
  return explore<Pair>([0, 0], ([i]) => {
    const state = states[i];
    if (!state) return { isAccepting: true, edges: [{ set: ALL_CODE_POINTS, target: [SINK, 0] }] };
    const rest = complementOf(unionOf(...state.transitions.map(({ set }) => set)));
    const edges = state.transitions.map(({ set, target }) => ({ set, target: [target, 0] as const }));
    return { isAccepting: !state.isAccepting, edges: [...edges, { set: rest, target: [SINK, 0] as const }] };
  });
}

/** Returns the automaton of the texts with that many characters. */
export function lengthsOf(min: number, max: number | undefined): Automaton {
  const last = max ?? min;
  if (last > MAX_STATES) throw tooLarge();
  return explore<Pair>([0, 0], ([length]) => {
    const next = max === undefined ? Math.min(length + 1, last) : length + 1;
    return {
      isAccepting: length >= min,
      edges: next > last ? [] : [{ set: ALL_CODE_POINTS, target: [next, 0] as const }],
    };
  });
}

/** Whether the automaton accepts the text. */
export function acceptsText({ states }: Automaton, text: string): boolean {
  let at = states[0];
  for (const character of text) {
    const step = at?.transitions.find(({ set }) => hasCodePoint(set, character.codePointAt(0) ?? 0));
    at = step && states[step.target];
  }
  return at?.isAccepting ?? false;
}

/** Whether the automaton accepts no text. */
export function acceptsNothing({ states }: Automaton): boolean {
  return states.length <= 1 && states[0]?.isAccepting !== true;
}

type Pair = readonly [number, number];

/** Explores states by their keys from the first one, and leaves out those that lead nowhere. `expand` gives disjoint edges. @throws GrammarError */
export function explore<K extends readonly number[]>(
  start: K,
  expand: (key: K) => { isAccepting: boolean; edges: readonly { set: CodePoints; target: K }[] },
): Automaton {
  const ids = new Map<string, number>();
  const keys: K[] = [];
  const idOf = (key: K): number => {
    const known = ids.get(key.join());
    if (known !== undefined) return known;
    if (keys.length >= MAX_STATES) throw tooLarge();
    ids.set(key.join(), keys.length);
    keys.push(key);
    return keys.length - 1;
  };
  idOf(start);
  const states: State[] = [];
  // Keys are added meanwhile. A transition without a character leads nowhere.
  for (const key of keys) {
    const { isAccepting, edges } = expand(key);
    const real = edges.filter(({ set }) => set.length > 0);
    states.push({
      isAccepting,
      transitions: mergedTransitions(real.map(({ set, target }) => ({ set, target: idOf(target) }))),
    });
  }
  return trimmed(states);
}

/** Returns one transition per target. */
function mergedTransitions(transitions: readonly Transition[]): Transition[] {
  const byTarget = new Map<number, CodePoints>();
  for (const { set, target } of transitions) {
    byTarget.set(target, unionOf(byTarget.get(target) ?? [], set));
  }
  return [...byTarget].map(([target, set]) => ({ set, target }));
}

function trimmed(states: readonly State[]): Automaton {
  const sources = states.map((): number[] => []);
  for (const [i, { transitions }] of states.entries()) for (const { target } of transitions) sources[target]?.push(i);
  const isAlive = states.map(() => false);
  const open = [...states.keys()].filter((i) => states[i]?.isAccepting);
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    if (isAlive[next]) continue;
    isAlive[next] = true;
    open.push(...(sources[next] ?? []));
  }
  const kept = [...states.keys()].filter((i) => i === 0 || isAlive[i]);
  const newIds = new Map(kept.map((id, i) => [id, i]));
  return {
    states: kept.map((id) => {
      const { isAccepting = false, transitions = [] } = states[id] ?? {};
      return {
        isAccepting,
        transitions: transitions
          .filter(({ target }) => isAlive[target])
          .map(({ set, target }) => ({ set, target: newIds.get(target) ?? 0 })),
      };
    }),
  };
}

/** The automaton of an expression, nondeterministic. */
class ExpressionNfa extends Nfa {
  /** Returns the state from which `expression` leads to `next`. */
  add(expression: Expression, next: number): number {
    switch (expression.kind) {
      case 'text':
        return Array.from(expression.text)
          .reverse()
          .reduce((to, character) => {
            const code = character.codePointAt(0) ?? 0;
            return this.step([[code, code]], to);
          }, next);
      case 'set':
        return this.step(expression.set, next);
      case 'sequence':
        return expression.items.reduceRight((to, item) => this.add(item, to), next);
      case 'choice': {
        const start = this.newState();
        for (const item of expression.items) this.jumps[start]?.push({ target: this.add(item, next) });
        return start;
      }
      case 'repeat':
        return this.repeat((to) => this.add(expression.item, to), expression.min, expression.max, next);
      case 'special':
      case 'rule':
        throw new Error(`an automaton of the ${expression.kind} ${expression.name}`);
    }
  }

  determinise(start: number, accept: number): Automaton {
    return explore<readonly number[]>(this.#closure([start]), (own) => ({
      isAccepting: own.includes(accept),
      edges: disjointParts(own.flatMap((state) => this.steps[state] ?? [])).map(({ set, targets }) => ({
        set,
        target: this.#closure(targets),
      })),
    }));
  }

  #closure(states: readonly number[]): number[] {
    const reached = new Set<number>();
    const open = [...states];
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      if (reached.has(next)) continue;
      reached.add(next);
      for (const { target } of this.jumps[next] ?? []) open.push(target);
    }
    return [...reached].sort((a, b) => a - b);
  }
}

/** Divides overlapping steps into disjoint sets, each with all that it leads to. */
function disjointParts(steps: readonly Transition[]): { set: CodePoints; targets: number[] }[] {
  return classesOf(steps.map(({ set }) => set)).map((own) => ({
    set: own,
    targets: steps.flatMap(({ set, target }) => (hasCodePoint(set, own[0]?.[0] ?? 0) ? [target] : [])),
  }));
}
