/** Which properties may be there together: `dependentRequired`, and `oneOf` whose alternatives only require properties. */
import { SchemaError } from './converted_schema.ts';
import type { Facts } from './facts.ts';
import { dependenciesOf, exclusiveLists } from './presence_rules.ts';

/** Declared properties whose presence depends on others (P1): each set of them is tried. */
const MAX_DEPENDENT = 6;
/** Sets of properties that are there together (P1): a variant of the object for each. */
const MAX_VARIANTS = 128;

/** Properties that are there and those that are not; others are free. */
export interface Presence {
  readonly present: ReadonlySet<string>;
  readonly absent: ReadonlySet<string>;
}

/** Names of properties that may be there. `implied`: those that no schema declares, which are there for another one only. */
export interface PossibleNames {
  readonly declared: readonly { readonly name: string }[];
  readonly required: ReadonlySet<string>;
  readonly implied: ReadonlySet<string>;
}

/** Returns the sets of properties that may be there together. @throws SchemaError when there are too many */
export function presenceOf(facts: Facts, names: PossibleNames): readonly Presence[] {
  return new Variants(facts, names).all();
}

class Variants {
  readonly #facts: Facts;
  readonly #dependencies: readonly (readonly [name: string, needs: readonly string[], pointer: string])[];
  readonly #exclusive: readonly (readonly (readonly string[])[])[];
  readonly #required: ReadonlySet<string>;
  /** Names that rules speak of: declared ones, and implied ones. */
  readonly #involved: readonly string[];
  readonly #implied: ReadonlySet<string>;
  readonly #found = new Map<string, Presence>();

  constructor(facts: Facts, { declared, required, implied }: PossibleNames) {
    this.#facts = facts;
    [this.#dependencies, this.#exclusive] = [dependenciesOf(facts), exclusiveLists(facts)];
    const spokenOf = this.#dependencies.flatMap(([name, needs]) => [name, ...needs]);
    const possible = new Set(declared.map(({ name }) => name));
    this.#involved = [...new Set([...spokenOf, ...this.#exclusive.flat(2)])].filter(
      (name) => possible.has(name) && !required.has(name),
    );
    this.#required = required;
    this.#implied = new Set(this.#involved.filter((name) => implied.has(name)));
  }

  all(): readonly Presence[] {
    const free = this.#involved.filter((name) => !this.#implied.has(name));
    if (free.length > MAX_DEPENDENT) throw this.#tooMany(MAX_DEPENDENT);
    for (let chosen = 0; chosen < 1 << free.length; chosen++)
      this.#add(new Set([...this.#required, ...free.filter((_, i) => (chosen & (1 << i)) !== 0)]), 0);
    return [...this.#found.values()];
  }

  /** Adds the variants that have `names` and, of implied ones, what those and the lists from `from` on demand. */
  #add(names: ReadonlySet<string>, from: number): void {
    const all = this.#withNeeds(names);
    if (!all) return;
    const holds = (list: readonly string[]): boolean => list.every((name) => all.has(name));
    const open = this.#exclusive.findIndex((lists, i) => i >= from && !lists.some(holds));
    if (open >= 0) {
      for (const list of this.#exclusive[open] ?? [])
        if (list.every((name) => all.has(name) || this.#implied.has(name)))
          this.#add(new Set([...all, ...list]), open + 1);
      return;
    }
    if (!this.#exclusive.every((lists) => lists.filter(holds).length === 1)) return;
    const present = new Set(this.#involved.filter((name) => all.has(name)));
    const absent = new Set(this.#involved.filter((name) => !all.has(name)));
    this.#found.set(JSON.stringify([...present]), { present, absent });
    if (this.#found.size > MAX_VARIANTS) throw this.#tooMany(MAX_VARIANTS);
  }

  /** Returns the names and the implied ones that they demand; undefined where they demand others, too. */
  #withNeeds(names: ReadonlySet<string>): ReadonlySet<string> | undefined {
    const all = new Set(names);
    // Names that are added meanwhile are visited, too.
    for (const name of all)
      for (const [other, needs] of this.#dependencies) {
        if (other !== name) continue;
        for (const need of needs) {
          if (!all.has(need) && !this.#implied.has(need)) return undefined;
          all.add(need);
        }
      }
    return all;
  }

  #tooMany(limit: number): SchemaError {
    const [, , pointer = ''] = this.#dependencies[0] ?? [];
    return new SchemaError(
      pointer || (this.#facts.disjunctions[0]?.pointer ?? ''),
      `the presence of more than ${limit} properties depends on others, which cannot be enforced: use anyOf of whole objects`,
    );
  }
}
