/** The characters that an automaton tells apart. */
import { classesOf, type CodePoints, unionOf } from './code_points.ts';

/** Classes of characters, such that each of some sets is a union of classes. */
export class Alphabet {
  readonly #classes: readonly CodePoints[];
  /** First code point of each class, ascending: with it a class is in a set, or has nothing of it. */
  readonly #codes: readonly number[];
  readonly #inSets = new Map<CodePoints, readonly number[]>();

  constructor(sets: readonly CodePoints[]) {
    this.#classes = classesOf(sets);
    this.#codes = this.#classes.map((own) => own[0]?.[0] ?? 0);
  }

  /** Returns the indices of the classes in one of the sets. */
  classesIn(set: CodePoints): readonly number[] {
    const known = this.#inSets.get(set);
    if (known) return known;
    const found = set.flatMap(([first, last]) => {
      const [from, to] = [this.#indexOf(first), this.#indexOf(last + 1)];
      return Array.from({ length: to - from }, (_, i) => from + i);
    });
    this.#inSets.set(set, found);
    return found;
  }

  /** Returns the sets of characters that `sets` tell apart, each with one of its code points. */
  told(sets: ReadonlySet<CodePoints>): { readonly set: CodePoints; readonly code: number }[] {
    const keys = new Map<number, string>();
    for (const [i, set] of [...sets].entries()) {
      const own = this.classesIn(set);
      for (const one of own.length * 2 > this.#classes.length ? this.#without(own) : own)
        keys.set(one, `${keys.get(one) ?? ''},${i}`);
    }
    const groups = new Map<string, number[]>();
    for (const one of this.#classes.keys()) {
      const key = keys.get(one) ?? '';
      const group = groups.get(key);
      if (group) group.push(one);
      else groups.set(key, [one]);
    }
    return [...groups.values()].map((group) => ({
      set: unionOf(...group.map((one) => this.#classes[one] ?? [])),
      code: this.#codes[group[0] ?? 0] ?? 0,
    }));
  }

  #without(classes: readonly number[]): number[] {
    const own = new Set(classes);
    return [...this.#classes.keys()].filter((one) => !own.has(one));
  }

  /** Returns the number of classes that begin before a code point. */
  #indexOf(code: number): number {
    let [low, high] = [0, this.#codes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#codes[middle] ?? 0) < code) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
