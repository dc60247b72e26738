/** Values that a schema lists: `enum`, `const`, and the two booleans. The other keywords choose among them by trying each. */
import type { Conversion } from './conversion.ts';
import type { Facts } from './facts.ts';
import type { JsonType } from './keywords.ts';

/** Keywords with which a value need not be tried. */
const LISTING: ReadonlySet<string> = new Set([
  'type',
  'enum',
  'const',
  'nullable',
  '$defs',
  'definitions',
  '$id',
  '$anchor',
  '$ref',
  'allOf',
]);

const known = new WeakMap<Facts, readonly unknown[] | undefined>();

/** Returns the values that the facts allow, if they are listed; undefined if they are not. */
export function listedValues(facts: Facts, conversion: Conversion): readonly unknown[] | undefined {
  if (!known.has(facts)) known.set(facts, validValues(facts, conversion));
  return known.get(facts);
}

function validValues(facts: Facts, conversion: Conversion): readonly unknown[] | undefined {
  const lists = [
    ...(facts.keywords.get('enum') ?? []).flatMap(({ value }) => (Array.isArray(value) ? [value as unknown[]] : [])),
    ...(facts.keywords.get('const') ?? []).map(({ value }) => [value]),
  ];
  const [first, ...others] = lists;
  if (!first) return isOnlyBoolean(facts) ? [true, false] : undefined;
  const texts = others.map((list) => new Set(list.map((value) => JSON.stringify(value))));
  const isAlone = facts.refused.length === 0 && [...facts.keywords.keys()].every((keyword) => LISTING.has(keyword));
  const isValid = isAlone ? hasType(facts.types, facts.hasType) : conversion.source.validatorOf(facts.schemas);
  const seen = new Set<string>();
  return first.filter((value) => {
    const text = JSON.stringify(value);
    if (seen.has(text) || !texts.every((list) => list.has(text)) || !isValid(value)) return false;
    seen.add(text);
    return true;
  });
}

function isOnlyBoolean(facts: Facts): boolean {
  return facts.types.size === 1 && facts.types.has('boolean') && facts.disjunctions.length === 0;
}

function hasType(types: ReadonlySet<JsonType>, isGiven: boolean): (value: unknown) => boolean {
  return (value) => {
    const type = typeOf(value);
    return !isGiven || types.has(type) || (type === 'integer' && types.has('number'));
  };
}

/** Returns the narrowest JSON type of a value. */
export function typeOf(value: unknown): JsonType {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value as JsonType;
}
