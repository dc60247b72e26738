/**
 * Deterministic automata of regular expressions with looks. A look behind is decided by what has been read: its body runs along from the
 * start of the text. A look ahead is decided later: whoever passes it takes on an obligation, which is the body as far as it has been read, and
 * counts at the end only if all its obligations are met.
 *
 *     state          = where the bodies of looks behind are, and the paths that are possible
 *     path           = a state of the automaton and its obligations
 *     obligation     = a look ahead, and the paths of its body that are possible: one must end well, or with (?!…) none may
 */
import type { AST } from '@eslint-community/regexpp';
import { type Automaton, explore } from './automaton.ts';
import { Alphabet } from './alphabet.ts';
import { type CodePoints, hasCodePoint } from './code_points.ts';
import { type Body, type Look, LookNfa } from './look_nfa.ts';
import { minimalOf } from './minimal_automaton.ts';
import { tooLarge } from './nfa.ts';

/** Runs of one state (P1). */
const MAX_PATHS = 2_000;
/** Obligations (P1). */
const MAX_OBLIGATIONS = 5_000;

/** Returns the automaton of the texts that match: as a whole, or with `isSearch` in a part. @throws GrammarError */
export function lookAutomaton(alternatives: readonly AST.Alternative[], isSearch: boolean): Automaton {
  return minimalOf(new Determiniser(new LookNfa(alternatives, isSearch)).run());
}

interface Path {
  readonly state: number;
  /** Ids of obligations, in order. */
  readonly owes: readonly number[];
}

interface Obligation {
  readonly look: Look;
  readonly paths: readonly Path[];
}

/** Where the automaton is after the characters that it has read. */
interface Reading {
  /** States of each body of looks behind, and whether it has just ended. */
  readonly behinds: readonly (readonly number[])[];
  readonly holds: readonly boolean[];
  readonly paths: readonly Path[];
}

class Determiniser {
  readonly #nfa: LookNfa;
  readonly #alphabet: Alphabet;
  readonly #readings: Reading[] = [];
  readonly #readingIds = new Map<string, number>();
  readonly #obligations: Obligation[] = [];
  readonly #obligationIds = new Map<string, number>();
  /** Obligations that begin or go on, by what they depend on. */
  readonly #begun = new Map<string, number | boolean>();
  readonly #stepped = new Map<string, number | boolean>();

  constructor(nfa: LookNfa) {
    this.#nfa = nfa;
    this.#alphabet = new Alphabet(nfa.steps.flatMap((steps) => steps.map(({ set }) => set)));
  }

  run(): Automaton {
    const { start, accept } = this.#nfa.whole;
    const first = this.#reading(
      this.#nfa.behinds.map((body) => [body.start]),
      (holds) => this.#closure([{ state: start, owes: [] }], holds),
    );
    return explore<readonly [number]>([this.#idOf(first)], ([id]) => {
      const reading = this.#readings[id];
      if (!reading) return { isAccepting: false, edges: [] };
      const edges = this.#alphabet.told(this.#setsOf(reading)).flatMap(({ set, code }) => {
        const next = this.#next(reading, code);
        return next.paths.length === 0 ? [] : [{ set, target: [this.#idOf(next)] as const }];
      });
      return { isAccepting: this.#endsWell(reading.paths, accept), edges };
    });
  }

  /** Returns the sets on which anything of a reading goes on. */
  #setsOf({ behinds, paths }: Reading): Set<CodePoints> {
    const sets = new Set<CodePoints>();
    const seen = new Set<number>();
    const addState = (state: number): void => {
      for (const { set } of this.#nfa.steps[state] ?? []) sets.add(set);
    };
    const addPaths = (own: readonly Path[]): void => {
      for (const { state, owes } of own) {
        addState(state);
        for (const id of owes) {
          if (seen.has(id)) continue;
          seen.add(id);
          addPaths(this.#obligations[id]?.paths ?? []);
        }
      }
    };
    for (const states of behinds) states.forEach(addState);
    addPaths(paths);
    return sets;
  }

  /** Returns where a state leads with a character. */
  #targets(state: number, code: number): number[] {
    const steps = this.#nfa.steps[state] ?? [];
    return steps.flatMap(({ set, target }) => (hasCodePoint(set, code) ? [target] : []));
  }

  #idOf(reading: Reading): number {
    const key = `${reading.behinds.join(';')}|${reading.paths.map(keyOf).join(' ')}`;
    const known = this.#readingIds.get(key);
    if (known !== undefined) return known;
    this.#readingIds.set(key, this.#readings.length);
    return this.#readings.push(reading) - 1;
  }

  #next({ behinds, paths }: Reading, code: number): Reading {
    return this.#reading(
      behinds.map((states) => states.flatMap((state) => this.#targets(state, code))),
      (holds) => this.#step(paths, code, holds),
    );
  }

  /** `seeds`: states of each body of looks behind; `pathsAt`: the paths, by which of those hold. */
  #reading(seeds: readonly (readonly number[])[], pathsAt: (holds: readonly boolean[]) => Path[]): Reading {
    const behinds: number[][] = [];
    const holds: boolean[] = [];
    for (const [i, states] of seeds.entries()) {
      const own = this.#behindClosure(states, holds);
      behinds.push(own);
      holds.push(own.includes(this.#nfa.behinds[i]?.accept ?? -1));
    }
    const paths = pathsAt(holds);
    const { whole, isSearch } = this.#nfa;
    const done = isSearch ? paths.find(({ state, owes }) => state === whole.accept && owes.length === 0) : undefined;
    // Any text may follow: what is behind decides nothing any more.
    return done ? { behinds: [], holds: [], paths: [done] } : { behinds, holds, paths };
  }

  #behindClosure(states: readonly number[], holds: readonly boolean[]): number[] {
    const reached = new Set<number>();
    const open = [...states];
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      if (reached.has(next)) continue;
      reached.add(next);
      for (const { target, condition: look } of this.#nfa.jumps[next] ?? [])
        if (!look || holds[look.body] !== look.isNegative) open.push(target);
    }
    return [...reached].sort((a, b) => a - b);
  }

  #step(paths: readonly Path[], code: number, holds: readonly boolean[]): Path[] {
    const seeds = paths.flatMap(({ state, owes }) => {
      const targets = this.#targets(state, code);
      const left = targets.length > 0 ? this.#stepAll(owes, code, holds) : undefined;
      return left ? targets.map((target) => ({ state: target, owes: left })) : [];
    });
    return this.#closure(seeds, holds);
  }

  /** Returns what is left of obligations after a character; undefined where one cannot be met any more. */
  #stepAll(owes: readonly number[], code: number, holds: readonly boolean[]): readonly number[] | undefined {
    const left: number[] = [];
    for (const id of owes) {
      const key = `${id} ${code} ${holds.join()}`;
      const known = this.#stepped.get(key);
      const obligation = this.#obligations[id];
      const next =
        known ?? (obligation ? this.#owed(obligation.look, this.#step(obligation.paths, code, holds)) : false);
      this.#stepped.set(key, next);
      if (next === false) return undefined;
      if (next !== true) left.push(next);
    }
    return sorted(left);
  }

  /** Returns the obligation of one who passes a look ahead; true: none, false: nobody may. */
  #begin(look: Look, holds: readonly boolean[]): number | boolean {
    const key = `${look.body} ${look.isNegative} ${holds.join()}`;
    const known = this.#begun.get(key);
    if (known !== undefined) return known;
    const { start } = this.#nfa.aheads[look.body] as Body;
    const begun = this.#owed(look, this.#closure([{ state: start, owes: [] }], holds));
    this.#begun.set(key, begun);
    return begun;
  }

  #owed(look: Look, paths: readonly Path[]): number | boolean {
    const { accept } = this.#nfa.aheads[look.body] as Body;
    if (paths.length === 0) return look.isNegative;
    if (paths.some(({ state, owes }) => state === accept && owes.length === 0)) return !look.isNegative;
    const key = `${look.body} ${look.isNegative} ${paths.map(keyOf).join(' ')}`;
    const known = this.#obligationIds.get(key);
    if (known !== undefined) return known;
    if (this.#obligations.length >= MAX_OBLIGATIONS) throw tooLarge();
    this.#obligationIds.set(key, this.#obligations.length);
    return this.#obligations.push({ look, paths }) - 1;
  }

  /** Returns the paths that are possible at a place, without those that owe more than another one in the same state. */
  #closure(seeds: readonly Path[], holds: readonly boolean[]): Path[] {
    const reached = new Map<string, Path>();
    const open = [...seeds];
    for (let next = open.pop(); next; next = open.pop()) {
      const key = keyOf(next);
      if (reached.has(key)) continue;
      if (reached.size >= MAX_PATHS) throw tooLarge();
      reached.set(key, next);
      for (const { target, condition: look } of this.#nfa.jumps[next.state] ?? []) {
        const passed = this.#pass(next.owes, look, holds);
        if (passed) open.push({ state: target, owes: passed });
      }
    }
    return this.#leastPaths([...reached.values()]);
  }

  /** Returns the obligations after a step without a character; undefined where it may not be taken. */
  #pass(owes: readonly number[], look: Look | undefined, holds: readonly boolean[]): readonly number[] | undefined {
    if (!look) return owes;
    if (look.kind === 'behind') return holds[look.body] === look.isNegative ? undefined : owes;
    const begun = this.#begin(look, holds);
    if (begun === false) return undefined;
    return begun === true || owes.includes(begun) ? owes : sorted([...owes, begun]);
  }

  #leastPaths(paths: readonly Path[]): Path[] {
    const byState = new Map<number, Path[]>();
    const shortest = paths.filter(({ state }) => this.#isReal(state)).sort((a, b) => a.owes.length - b.owes.length);
    for (const path of shortest) {
      const others = byState.get(path.state) ?? [];
      if (others.some(({ owes }) => owes.every((id) => path.owes.includes(id)))) continue;
      byState.set(path.state, [...others, path]);
    }
    return [...byState.keys()]
      .sort((a, b) => a - b)
      .flatMap((state) => [...(byState.get(state) ?? [])].sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1)));
  }

  /** Whether a state is more than a way to others. */
  #isReal(state: number): boolean {
    return (this.#nfa.steps[state]?.length ?? 0) > 0 || (this.#nfa.jumps[state]?.length ?? 0) === 0;
  }

  /** Whether one of the paths may end with the text. */
  #endsWell(paths: readonly Path[], accept: number): boolean {
    return paths.some(({ state, owes }) => state === accept && owes.every((id) => this.#isMet(id)));
  }

  #isMet(id: number): boolean {
    const obligation = this.#obligations[id];
    if (!obligation) return false;
    const { look, paths } = obligation;
    return this.#endsWell(paths, (this.#nfa.aheads[look.body] as Body).accept) !== look.isNegative;
  }
}

function keyOf({ state, owes }: Path): string {
  return `${state}:${owes.join('.')}`;
}

function sorted(ids: readonly number[]): number[] {
  return [...new Set(ids)].sort((a, b) => a - b);
}
