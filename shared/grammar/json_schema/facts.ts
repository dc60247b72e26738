/**
 * The keywords of all schemas that one value has to satisfy, merged: those of `allOf`, of `$ref` and of its siblings, and of the chosen
 * alternative of an `anyOf`. What cannot be merged is refused by its pointer.
 */
import { SchemaError } from './converted_schema.ts';
import { integerFormats } from './formats.ts';
import { type JsonType, treatmentOf } from './keywords.ts';
import { isSchema, type Located, pointerTo, type SchemaObject, type SchemaSource, WITHOUT } from './schema_source.ts';
import { isAnything, isNothing, isSilent } from './trivial_schemas.ts';

const ALL_TYPES: readonly JsonType[] = ['object', 'array', 'string', 'number', 'boolean', 'null'];
const FOLLOWED: readonly string[] = ['anyOf', 'oneOf', 'allOf', '$ref'];
/** Schemas that one value has to satisfy at once (P1). */
const MAX_MERGED = 500;

/** A keyword's value and where it is. */
interface Keyword {
  readonly value: unknown;
  readonly pointer: string;
}

/** Alternatives, of which one or, if `isExclusive`, exactly one holds. */
export interface Disjunction {
  readonly alternatives: readonly Located[];
  readonly isExclusive: boolean;
  readonly pointer: string;
}

/** All that is known of one value. */
export interface Facts {
  /** Some schema says that there is no value, all alternatives of a disjunction do, or no type is in all schemas. */
  isNever: boolean;
  types: ReadonlySet<JsonType>;
  /** Whether `types` follows from a `type`, not from other keywords. */
  hasType: boolean;
  /** Keywords by name, one per schema that has it. */
  readonly keywords: Map<string, Keyword[]>;
  /** The schemas themselves: each object says which properties it knows, each array which items. */
  readonly schemas: readonly Located[];
  readonly disjunctions: readonly Disjunction[];
  readonly refused: readonly { readonly pointer: string; readonly keyword: string; readonly remedy: string }[];
}

/** Merges schemas. `ignore` gets the pointers of keywords that are not known. @throws SchemaError */
export function factsOf(parts: readonly Located[], source: SchemaSource, ignore: (pointer: string) => void): Facts {
  const schemas = collected(parts, source);
  const keywords = new Map<string, Keyword[]>();
  const refused: { pointer: string; keyword: string; remedy: string }[] = [];
  const disjunctions: Disjunction[] = [];
  const spokenOf = new Set<JsonType>();
  let types: ReadonlySet<JsonType> | undefined;
  for (const { schema, pointer } of schemas) {
    if (typeof schema === 'boolean') continue;
    for (const [keyword, value] of Object.entries(schema)) {
      const at = pointerTo(pointer, keyword);
      const treatment = treatmentOf(keyword);
      if (!treatment) ignore(at);
      else if (treatment.kind === 'refused') addRefused(refused, keyword, value, at, treatment.remedy);
      else if (treatment.kind === 'enforced') {
        const list = keywords.get(keyword);
        if (list) list.push({ value, pointer: at });
        else keywords.set(keyword, [{ value, pointer: at }]);
        if (treatment.of) spokenOf.add(treatment.of);
      }
    }
    if (schema['type'] !== undefined) types = intersectTypes(types, typesOf(schema));
    disjunctions.push(...disjunctionsOf({ schema, pointer }));
  }
  for (const { value } of keywords.get('format') ?? [])
    spokenOf.add(typeof value === 'string' && integerFormats.has(value) ? 'integer' : 'string');
  return {
    isNever:
      types?.size === 0 ||
      schemas.some(({ schema }) => isNothing(schema)) ||
      disjunctions.some(({ alternatives }) => alternatives.every(({ schema }) => isNothing(schema))),
    types: types ?? inferred(spokenOf),
    hasType: types !== undefined,
    keywords,
    schemas,
    disjunctions,
    refused,
  };
}

/** `allOf` and `$ref` followed, each schema once. */
function collected(parts: readonly Located[], source: SchemaSource): Located[] {
  const found = new Map<string, Located>();
  const open = [...parts].reverse();
  for (let next = open.pop(); next; next = open.pop()) {
    const { schema, pointer } = next;
    if (found.has(pointer)) continue;
    found.set(pointer, next);
    if (found.size > MAX_MERGED) throw new SchemaError(pointer, `more than ${MAX_MERGED} schemas hold for one value`);
    if (typeof schema === 'boolean') continue;
    const { $ref, allOf } = schema;
    if (Array.isArray(allOf))
      for (const [i, part] of [...allOf.entries()].reverse())
        if (isSchema(part)) open.push({ schema: part, pointer: pointerTo(pointer, 'allOf', i) });
    if ($ref !== undefined) open.push(source.resolve($ref, pointerTo(pointer, '$ref')));
  }
  return [...found.values()];
}

/**
 * Returns whether a schema is one of those that `located` brings to the same value: itself, those of its `allOf` and `$ref`, and its alternatives.
 * They are what its `unevaluatedProperties` and `unevaluatedItems` know of. Takes pointers.
 */
export function inPlaceOf({ pointer }: Located, source: SchemaSource): (other: string) => boolean {
  const original = source.at(withoutMarks(pointer));
  const reached = new Set<string>();
  const open = original ? [original] : [];
  for (let next = open.pop(); next; next = open.pop())
    for (const one of collected([next], source)) {
      if (reached.has(one.pointer)) continue;
      reached.add(one.pointer);
      if (typeof one.schema === 'object')
        for (const { alternatives } of disjunctionsOf({ schema: one.schema, pointer: one.pointer }))
          open.push(...alternatives);
    }
  return (other) => reached.has(withoutMarks(other));
}

function withoutMarks(pointer: string): string {
  return pointer.replaceAll(WITHOUT, '');
}

/** A keyword that is refused unless it holds for every value, or for none. */
function addRefused(
  refused: { pointer: string; keyword: string; remedy: string }[],
  keyword: string,
  value: unknown,
  pointer: string,
  remedy: string,
): void {
  if (keyword === 'not' && (isNothing(value) || isAnything(value))) return;
  refused.push({ pointer, keyword, remedy });
}

function typesOf(schema: SchemaObject): ReadonlySet<JsonType> {
  const { type, nullable } = schema;
  const named = new Set((Array.isArray(type) ? type : [type]) as JsonType[]);
  if (nullable === true) named.add('null');
  return named;
}

/** @returns the types in both; an integer is a number */
function intersectTypes(a: ReadonlySet<JsonType> | undefined, b: ReadonlySet<JsonType>): ReadonlySet<JsonType> {
  if (!a) return b;
  const both = new Set([...a].filter((type) => b.has(type)));
  for (const [one, other] of [
    [a, b],
    [b, a],
  ] as const)
    if (one.has('integer') && other.has('number') && !both.has('number')) both.add('integer');
  return both;
}

/** A schema without `type` means the values that its keywords speak of. */
function inferred(spokenOf: ReadonlySet<JsonType>): ReadonlySet<JsonType> {
  const types = new Set(spokenOf.size > 0 ? spokenOf : ALL_TYPES);
  if (types.has('number')) types.delete('integer');
  return types;
}

function disjunctionsOf({ schema, pointer }: { schema: SchemaObject; pointer: string }): Disjunction[] {
  return (['anyOf', 'oneOf'] as const).flatMap((keyword) => {
    const value = schema[keyword];
    if (!Array.isArray(value)) return [];
    const at = pointerTo(pointer, keyword);
    const alternatives = value.flatMap((part: unknown, i) =>
      isSchema(part) ? [{ schema: part, pointer: pointerTo(at, i) }] : [],
    );
    return [{ alternatives, isExclusive: keyword === 'oneOf', pointer: at }];
  });
}

/**
 * Returns the schemas without alternatives, one of which takes their place, and without what has been followed. The disjunctions in `kept`
 * stay.
 */
export function withoutDisjunctions(facts: Facts, kept: readonly Disjunction[]): Located[] {
  const schemas = facts.schemas.map(({ schema, pointer }): Located => {
    if (typeof schema === 'boolean' || !FOLLOWED.some((keyword) => keyword in schema)) return { schema, pointer };
    const stays = (keyword: string): boolean => kept.some((one) => one.pointer === pointerTo(pointer, keyword));
    const entries = Object.entries(schema).filter(([keyword]) => !FOLLOWED.includes(keyword) || stays(keyword));
    return { schema: Object.fromEntries(entries), pointer: `${pointer}${WITHOUT}` };
  });
  // Fewer schemas are the same rule in more places.
  return schemas.filter(({ schema }) => typeof schema === 'boolean' || !Object.keys(schema).every(isSilent));
}

/** Returns the numbers of a keyword. */
export function numbersOf(facts: Facts, keyword: string): { readonly value: number; readonly pointer: string }[] {
  return (facts.keywords.get(keyword) ?? []).flatMap(({ value, pointer }) =>
    typeof value === 'number' ? [{ value, pointer }] : [],
  );
}

/** Returns the largest of a keyword's numbers, such as `minLength`; undefined without one. */
export function largest(facts: Facts, keyword: string): number | undefined {
  const numbers = numbersOf(facts, keyword).map(({ value }) => value);
  return numbers.length === 0 ? undefined : Math.max(...numbers);
}

/** Returns the smallest of a keyword's numbers, such as `maxLength`; undefined without one. */
export function smallest(facts: Facts, keyword: string): number | undefined {
  const numbers = numbersOf(facts, keyword).map(({ value }) => value);
  return numbers.length === 0 ? undefined : Math.min(...numbers);
}

/** Returns where a keyword is, for messages. */
export function pointerOf(facts: Facts, ...keywords: readonly string[]): string {
  for (const keyword of keywords) {
    const [found] = facts.keywords.get(keyword) ?? [];
    if (found) return found.pointer;
  }
  return facts.schemas[0]?.pointer ?? '';
}
