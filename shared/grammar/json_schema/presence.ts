/** Which properties may be there together: `dependentRequired`, and `oneOf` whose alternatives only require properties. */
import { SchemaError } from './converted_schema.ts';
import type { Facts } from './facts.ts';
import { dependenciesOf, exclusiveLists } from './presence_rules.ts';
import type { Properties } from './properties.ts';

/** Properties whose presence depends on others (P1): a variant of the object for each set of them. */
const MAX_DEPENDENT = 6;

/** Properties that are there and those that are not; others are free. */
export interface Presence {
  readonly present: ReadonlySet<string>;
  readonly absent: ReadonlySet<string>;
}

/** Returns the sets of properties that may be there together. @throws SchemaError when there are too many */
export function presenceOf(facts: Facts, { declared, required, implied }: Properties): readonly Presence[] {
  const dependencies = dependenciesOf(facts);
  const exclusive = exclusiveLists(facts);
  const involved = [
    ...new Set([...dependencies.flatMap(([name, needs]) => [name, ...needs]), ...exclusive.flat(2)]),
  ].filter((name) => declared.some((property) => property.name === name) && !required.has(name));
  const [, , pointer = ''] = dependencies[0] ?? [];
  if (involved.length > MAX_DEPENDENT)
    throw new SchemaError(
      pointer || (facts.disjunctions[0]?.pointer ?? ''),
      `the presence of more than ${MAX_DEPENDENT} properties depends on others, which cannot be enforced: use anyOf of whole objects`,
    );
  // A key that no schema declares is there for another one only.
  const isDemanded = (name: string, has: (name: string) => boolean): boolean =>
    dependencies.some(([other, needs]) => has(other) && needs.includes(name)) ||
    exclusive.flat().some((list) => list.includes(name) && list.every(has));
  const variants: Presence[] = [];
  for (let chosen = 0; chosen < 1 << involved.length; chosen++) {
    const present = new Set(involved.filter((_, i) => (chosen & (1 << i)) !== 0));
    const has = (name: string): boolean => present.has(name) || required.has(name);
    const isAllowed =
      dependencies.every(([name, needs]) => !has(name) || needs.every(has)) &&
      exclusive.every((lists) => lists.filter((list) => list.every(has)).length === 1) &&
      [...present].every((name) => !implied.has(name) || isDemanded(name, has));
    if (isAllowed) variants.push({ present, absent: new Set(involved.filter((name) => !present.has(name))) });
  }
  return variants;
}
