/** Automata with as few states as their texts need. */
import type { Automaton } from './automaton.ts';
import { classesOf, hasCodePoint, unionOf } from './code_points.ts';

/** Returns the automaton of the same texts with the fewest states: those that the same texts lead to an end are one. */
export function minimalOf({ states }: Automaton): Automaton {
  const classes = classesOf(states.flatMap(({ transitions }) => transitions.map(({ set }) => set)));
  const targets = states.map(({ transitions }) =>
    classes.map((own) => transitions.find(({ set }) => hasCodePoint(set, own[0]?.[0] ?? 0))?.target),
  );
  let groups = states.map(({ isAccepting }): number => (isAccepting ? 1 : 0));
  for (let numGroups = 0; ;) {
    const ids = new Map<string, number>();
    groups = states.map((_, i) => {
      const key = `${groups[i]}:${targets[i]?.map((target) => (target === undefined ? '' : groups[target])).join()}`;
      const id = ids.get(key) ?? ids.size;
      ids.set(key, id);
      return id;
    });
    // A round divides groups further, or changes nothing.
    if (ids.size === numGroups) break;
    numGroups = ids.size;
  }
  // The first state of each group; the start is in group 0.
  const firsts = [...new Set(groups)].map((group) => groups.indexOf(group));
  return {
    states: firsts.map((first) => {
      const sets = new Map<number, (typeof classes)[number][]>();
      for (const [i, own] of classes.entries()) {
        const target = targets[first]?.[i];
        const group = target === undefined ? undefined : groups[target];
        if (group !== undefined) sets.set(group, [...(sets.get(group) ?? []), own]);
      }
      return {
        isAccepting: states[first]?.isAccepting ?? false,
        transitions: [...sets].map(([target, own]) => ({ set: unionOf(...own), target })),
      };
    }),
  };
}
