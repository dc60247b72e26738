/** Rules that demand keys besides `required`: `dependentRequired`, and `oneOf` whose alternatives only require properties. */
import { SchemaError } from './converted_schema.ts';
import type { Disjunction, Facts } from './facts.ts';
import type { Located } from './schema_source.ts';

/** Returns the keys that others demand. */
export function demandedNames(facts: Facts): Set<string> {
  return new Set([...dependenciesOf(facts).flatMap(([, needs]) => needs), ...exclusiveLists(facts).flat(2)]);
}

/** Returns the keys that demand others. */
export function demandingNames(facts: Facts): string[] {
  return dependenciesOf(facts).map(([name]) => name);
}

/** Returns the lists of which exactly one must be there as a whole, for each such `oneOf`. */
export function exclusiveLists(facts: Facts): string[][][] {
  return facts.disjunctions.filter(isRequiredOnly).map(requiredLists);
}

/** Returns each key that demands others, what it demands, and where that is said. @throws SchemaError */
export function dependenciesOf(facts: Facts): [name: string, needs: string[], pointer: string][] {
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
