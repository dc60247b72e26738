/** Which properties may be there together: `dependentRequired`, and `oneOf` whose alternatives only require properties. */
import { SchemaError } from './converted_schema.ts';
import { type Disjunction, type Facts } from './facts.ts';
import type { Properties } from './properties.ts';
import type { Located } from './schema_source.ts';

/** Properties whose presence depends on others (P1): a variant of the object for each set of them. */
const MAX_DEPENDENT = 6;

/** Properties that are there and those that are not; others are free. */
export interface Presence {
  readonly present: ReadonlySet<string>;
  readonly absent: ReadonlySet<string>;
}

/** Returns the sets of properties that may be there together. @throws SchemaError when there are too many */
export function presenceOf(facts: Facts, { declared, required }: Properties): readonly Presence[] {
  const dependencies = dependenciesOf(facts);
  const exclusive = facts.disjunctions.filter(isRequiredOnly).map(requiredLists);
  const involved = [
    ...new Set([...dependencies.flatMap(([name, needs]) => [name, ...needs]), ...exclusive.flat(2)]),
  ].filter((name) => declared.some((property) => property.name === name) && !required.has(name));
  const [, , pointer = ''] = dependencies[0] ?? [];
  if (involved.length > MAX_DEPENDENT)
    throw new SchemaError(
      pointer || (facts.disjunctions[0]?.pointer ?? ''),
      `the presence of more than ${MAX_DEPENDENT} properties depends on others, which cannot be enforced: use anyOf of whole objects`,
    );
  const variants: Presence[] = [];
  for (let chosen = 0; chosen < 1 << involved.length; chosen++) {
    const present = new Set(involved.filter((_, i) => (chosen & (1 << i)) !== 0));
    const has = (name: string): boolean => present.has(name) || required.has(name);
    const isAllowed =
      dependencies.every(([name, needs]) => !has(name) || needs.every(has)) &&
      exclusive.every((lists) => lists.filter((list) => list.every(has)).length === 1);
    if (isAllowed) variants.push({ present, absent: new Set(involved.filter((name) => !present.has(name))) });
  }
  return variants;
}

function dependenciesOf(facts: Facts): [name: string, needs: string[], pointer: string][] {
  return ['dependentRequired', 'dependencies'].flatMap((keyword) =>
    (facts.keywords.get(keyword) ?? []).flatMap(({ value, pointer }) =>
      Object.entries(value as Record<string, unknown>).map(([name, needs]): [string, string[], string] => {
        if (!Array.isArray(needs))
          throw new SchemaError(pointer, `${keyword} with a schema cannot be enforced: use anyOf of whole objects`);
        return [name, needs as string[], pointer];
      }),
    ),
  );
}

/** Whether a disjunction is exclusive and its alternatives only require properties. */
export function isRequiredOnly({ alternatives, isExclusive }: Disjunction): boolean {
  return isExclusive && alternatives.every(({ schema }) => isRequirement(schema));
}

function isRequirement(schema: Located['schema']): boolean {
  if (typeof schema === 'boolean' || !Array.isArray(schema['required'])) return false;
  return Object.keys(schema).every((keyword) => ['required', 'title', 'description'].includes(keyword));
}

function requiredLists({ alternatives }: Disjunction): string[][] {
  return alternatives.map(({ schema }) => {
    const required = typeof schema === 'object' ? schema['required'] : undefined;
    return Array.isArray(required) ? (required as string[]) : [];
  });
}
