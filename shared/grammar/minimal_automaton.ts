/** Automata with as few states as their texts need. */
import { Alphabet } from './alphabet.ts';
import type { Automaton } from './automaton.ts';
import { type CodePoints, unionOf } from './code_points.ts';

/** Steps of an automaton, each on a class of characters, beyond which it is left as it is (P1). */
const MAX_STEPS = 2_000_000;

/**
 * Returns the automaton of the same texts with the fewest states: those from which the same texts lead to an end are one. By Hopcroft's
 * algorithm for automata that have no state for what leads nowhere (Valmari, "Fast brief practical DFA minimization", 2012).
 */
export function minimalOf(automaton: Automaton): Automaton {
  const { states } = automaton;
  const alphabet = new Alphabet(states.flatMap(({ transitions }) => transitions.map(({ set }) => set)));
  /** Steps to each state: the class, and the state that they come from. */
  const sources = states.map((): [own: number, from: number][] => []);
  let numSteps = 0;
  for (const [from, { transitions }] of states.entries())
    for (const { set, target } of transitions) {
      const classes = alphabet.classesIn(set);
      numSteps += classes.length;
      if (numSteps > MAX_STEPS) return automaton;
      for (const own of classes) sources[target]?.push([own, from]);
    }
  const partition = new Partition(states.map(({ isAccepting }) => (isAccepting ? 1 : 0)));
  for (let next = partition.waiting.pop(); next !== undefined; next = partition.waiting.pop()) {
    const byClass = new Map<number, number[]>();
    for (const state of partition.groups[next] ?? [])
      for (const [own, from] of sources[state] ?? []) {
        const list = byClass.get(own);
        if (list) list.push(from);
        else byClass.set(own, [from]);
      }
    for (const list of byClass.values()) partition.divide(list);
  }
  return merged(automaton, partition);
}

/** The states in groups; the states of two groups are known to differ. */
class Partition {
  readonly groups: Set<number>[] = [];
  readonly groupOf: number[];
  /** Groups by which others are still to be divided. */
  readonly waiting: number[] = [];

  constructor(kinds: readonly number[]) {
    this.groupOf = [...kinds];
    for (const kind of [0, 1]) {
      this.waiting.push(kind);
      this.groups.push(new Set([...kinds.keys()].filter((state) => kinds[state] === kind)));
    }
  }

  /** Divides each group into the states that are listed and the others. */
  divide(list: readonly number[]): void {
    const touched = new Map<number, Set<number>>();
    for (const state of list) {
      const group = this.groupOf[state] ?? 0;
      const found = touched.get(group);
      if (found) found.add(state);
      else touched.set(group, new Set([state]));
    }
    for (const [group, found] of touched) {
      const all = this.groups[group];
      if (!all || found.size === all.size) continue;
      for (const state of found) all.delete(state);
      const id = this.groups.push(found) - 1;
      for (const state of found) this.groupOf[state] = id;
      // Both, where the group waits; else the smaller one tells as much.
      if (this.waiting.includes(group) || found.size <= all.size) this.waiting.push(id);
      else this.waiting.push(group);
    }
  }
}

function merged({ states }: Automaton, { groupOf }: Partition): Automaton {
  // The first state stays the first.
  const ids = new Map<number, number>();
  for (const group of groupOf) if (!ids.has(group)) ids.set(group, ids.size);
  const idOf = (state: number): number => ids.get(groupOf[state] ?? 0) ?? 0;
  return {
    states: [...ids.keys()].map((group) => {
      const { isAccepting = false, transitions = [] } = states[groupOf.indexOf(group)] ?? {};
      const sets = new Map<number, CodePoints>();
      for (const { set, target } of transitions) sets.set(idOf(target), unionOf(sets.get(idOf(target)) ?? [], set));
      return { isAccepting, transitions: [...sets].map(([target, set]) => ({ set, target })) };
    }),
  };
}
