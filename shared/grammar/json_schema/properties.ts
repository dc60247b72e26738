/**
 * Which keys an object may have, and what each holds: declared ones, those of patterns, and others.
 *
 * Without `additionalProperties` an object that declares properties has no others, as structured output means it everywhere; one that declares
 * none is open, as JSON Schema says.
 */
import { ANY_CHARACTER, ANY_STRING, literalJson, quoted, spelled, spelledSet } from '../any_json.ts';
import {
  acceptsNothing,
  acceptsText,
  type Automaton,
  automatonOf,
  bothOf,
  isAutomaton,
  othersOf,
} from '../automaton.ts';
import { charactersOf, complementOf } from '../code_points.ts';
import { choice, choiceOf, type Expression, NEVER, repeat, sequence, text } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Facts, pointerOf } from './facts.ts';
import { isSchema, type Located, pointerTo } from './schema_source.ts';
import { automatonString, languagesOf, lengthBounds, located, patternAt, stringExpression } from './strings.ts';
import { listedValues } from './values.ts';

/** Patterns of keys of one object (P1): each set of them is a kind of keys. */
const MAX_PATTERNS = 4;
/** Beginnings of declared keys that other keys are told apart by (P1). */
const MAX_BEGINNINGS = 4;

/** A key and what its value satisfies. */
interface Property {
  readonly name: string;
  readonly parts: readonly Located[];
}

/** Keys of one kind. */
interface KeyKind {
  /** The key with its quotes. */
  readonly key: Expression;
  readonly parts: readonly Located[];
}

/** All keys that an object may have. */
export interface Properties {
  readonly declared: readonly Property[];
  readonly required: ReadonlySet<string>;
  readonly others: readonly KeyKind[];
}

/** A pattern of keys, and the schema of their values. */
interface KeyPattern {
  readonly pattern: string;
  readonly pointer: string;
  readonly value: Located;
  /** Made when it is first needed: one pattern alone needs none. */
  readonly automaton: () => Automaton;
}

/** Keys as one schema speaks of them. */
interface KeySource {
  readonly declared: ReadonlyMap<string, Located>;
  readonly patterns: readonly KeyPattern[];
  /** The schema of all other keys; undefined: not said. */
  readonly additional: Located | undefined;
}

const known = new WeakMap<Facts, Properties>();

/** Returns the keys that the facts allow. */
export function propertiesOf(facts: Facts, conversion: Conversion): Properties {
  const properties = known.get(facts) ?? findProperties(facts, conversion);
  known.set(facts, properties);
  return properties;
}

function findProperties(facts: Facts, conversion: Conversion): Properties {
  const sources = facts.schemas.flatMap((located) => keySourceOf(located) ?? []);
  const names = new Set(sources.flatMap(({ declared }) => [...declared.keys()]));
  const hasDeclared = names.size > 0;
  const required = requiredOf(facts);
  const isOpen =
    sources.some(({ additional }) => additional) ||
    (!hasDeclared && !sources.some(({ patterns }) => patterns.length > 0));
  for (const name of required) names.add(name);
  const keyTest = keyTestOf(facts, conversion);
  const declared: Property[] = [];
  for (const name of names) {
    const parts = partsOf(name, sources, isOpen || !hasDeclared);
    if (parts && keyTest(name)) declared.push({ name, parts });
  }
  const others = otherKinds(facts, sources, [...names], isOpen, conversion);
  return { declared, required, others };
}

function requiredOf(facts: Facts): Set<string> {
  const lists = (facts.keywords.get('required') ?? []).map(({ value }) => value);
  return new Set(lists.flatMap((list) => (Array.isArray(list) ? list.filter((name) => typeof name === 'string') : [])));
}

function keySourceOf({ schema, pointer }: Located): KeySource | undefined {
  if (typeof schema === 'boolean') return undefined;
  const { properties, patternProperties, additionalProperties, unevaluatedProperties } = schema;
  const [additional, keyword] =
    additionalProperties === undefined
      ? [unevaluatedProperties, 'unevaluatedProperties']
      : [additionalProperties, 'additionalProperties'];
  if (properties === undefined && patternProperties === undefined && additional === undefined) return undefined;
  const at = pointerTo(pointer, 'patternProperties');
  return {
    declared: new Map(entriesOf(properties, pointerTo(pointer, 'properties'))),
    patterns: entriesOf(patternProperties, at).map(([pattern, value]) =>
      keyPattern(pattern, pointerTo(at, pattern), value),
    ),
    additional: isSchema(additional) ? { schema: additional, pointer: pointerTo(pointer, keyword) } : undefined,
  };
}

function entriesOf(value: unknown, pointer: string): [string, Located][] {
  if (!isSchema(value) || typeof value === 'boolean') return [];
  return Object.entries(value).flatMap(([key, schema]) =>
    isSchema(schema) ? [[key, { schema, pointer: pointerTo(pointer, key) }] satisfies [string, Located]] : [],
  );
}

/** Returns what all schemas say of one key; undefined: the key is not allowed. */
function partsOf(name: string, sources: readonly KeySource[], isOpen: boolean): Located[] | undefined {
  const parts: Located[] = [];
  let isKnown = isOpen;
  for (const { declared, patterns, additional } of sources) {
    const own = declared.get(name);
    const matching = patterns.filter(({ automaton }) => acceptsText(automaton(), name)).map(({ value }) => value);
    if (own || matching.length > 0) {
      isKnown = true;
      parts.push(...(own ? [own] : []), ...matching);
    } else if (additional) parts.push(additional);
  }
  return isKnown && !parts.some(({ schema }) => schema === false) ? parts : undefined;
}

function keyPattern(pattern: string, pointer: string, value: Located): KeyPattern {
  let made: Automaton | undefined;
  const automaton = (): Automaton => (made ??= keyAutomaton(pattern, pointer));
  return { pattern, pointer, value, automaton };
}

function keyAutomaton(pattern: string, pointer: string): Automaton {
  try {
    return automatonOf(patternAt(pattern, pointer, 'search'));
  } catch (error) {
    throw located(error, pointer);
  }
}

/** Schemas of `propertyNames`. */
function nameParts(facts: Facts): Located[] {
  return (facts.keywords.get('propertyNames') ?? []).flatMap(({ value, pointer }) =>
    isSchema(value) ? [{ schema: value, pointer }] : [],
  );
}

function keyTestOf(facts: Facts, conversion: Conversion): (name: string) => boolean {
  const parts = nameParts(facts);
  return parts.length === 0 ? () => true : conversion.source.validatorOf(parts);
}

/** Keys that are not declared, by what their values satisfy. */
function otherKinds(
  facts: Facts,
  sources: readonly KeySource[],
  names: readonly string[],
  isOpen: boolean,
  conversion: Conversion,
): KeyKind[] {
  const patterns = sources.flatMap((source) => source.patterns.map((pattern) => ({ ...pattern, source })));
  if (patterns.length > MAX_PATTERNS)
    throw new SchemaError(
      patterns[MAX_PATTERNS]?.pointer ?? '',
      `more than ${MAX_PATTERNS} patterns of keys for one object cannot be enforced: bring them together`,
    );
  const parts = nameParts(facts);
  if (patterns.length === 0 && !isOpen) return [];
  const rest = sources.flatMap(({ additional }) => additional ?? []);
  if (patterns.length === 0)
    return rest.some(({ schema }) => schema === false)
      ? []
      : [{ key: otherKey(parts, names, conversion), parts: rest }];
  const languages = namesLanguages(parts, conversion);
  const all = [...patterns, ...parts].map(({ pointer }) => pointer);
  const kinds: KeyKind[] = [];
  for (let chosen = 0; chosen < 1 << patterns.length; chosen++) {
    const matching = patterns.filter((_, i) => (chosen & (1 << i)) !== 0);
    if (chosen === 0 && !isOpen) continue;
    const additional = sources.flatMap((source) =>
      source.additional && !matching.some((pattern) => pattern.source === source) ? [source.additional] : [],
    );
    const values = [...matching.map(({ value }) => value), ...additional];
    if (values.some(({ schema }) => schema === false)) continue;
    // Declared keys of this kind are not among the others.
    const own = names.filter((name) =>
      patterns.every((one) => acceptsText(one.automaton(), name) === matching.includes(one)),
    );
    const except = own.length > 0 ? [othersOf(automatonOf(choiceOf(own.map(text))))] : [];
    const key = JSON.stringify([all, own]);
    kinds.push(...patternKind(patterns, matching, [...languages, ...except], values, conversion, key));
  }
  return kinds;
}

/** Keys that match some patterns and no others. */
function patternKind(
  patterns: readonly KeyPattern[],
  matching: readonly KeyPattern[],
  languages: readonly Automaton[],
  values: readonly Located[],
  conversion: Conversion,
  name: string,
): KeyKind[] {
  const [only] = matching;
  if (patterns.length === 1 && only && languages.length === 0) {
    const language = patternAt(only.pattern, only.pointer, 'search');
    if (!isAutomaton(language)) return [{ key: quoted(spelled(language)), parts: values }];
  }
  const own = patterns.map((one) => (matching.includes(one) ? one.automaton() : othersOf(one.automaton())));
  const [first, ...others] = [...own, ...languages];
  const automaton = first ? others.reduce(bothOf, first) : undefined;
  if (!automaton || acceptsNothing(automaton)) return [];
  const key = `keys of ${name} in ${JSON.stringify(matching.map(({ pointer }) => pointer))}`;
  return [{ key: automatonString(automaton, conversion, key), parts: values }];
}

/** Languages of `propertyNames`. */
function namesLanguages(parts: readonly Located[], conversion: Conversion): Automaton[] {
  if (parts.length === 0) return [];
  const facts = conversion.facts(parts);
  const [min, max] = lengthBounds(facts);
  const listed =
    facts.keywords.has('enum') ||
    facts.keywords.has('const') ||
    facts.disjunctions.length > 0 ||
    min > 0 ||
    max !== undefined;
  if (listed || facts.refused.length > 0)
    throw new SchemaError(pointerOf(facts), 'propertyNames can be enforced beside properties by a pattern only');
  return [...languagesOf(facts, conversion).values()].map(automatonOf);
}

/** Any key that is not declared. */
function otherKey(parts: readonly Located[], names: readonly string[], conversion: Conversion): Expression {
  if (parts.length === 0) return keyExcept(names);
  const facts = conversion.facts(parts);
  const values = listedValues(facts, conversion)?.filter(
    (value) => typeof value === 'string' && !names.includes(value),
  );
  if (values) return choiceOf(values.map(literalJson));
  if (names.length === 0 && facts.disjunctions.length === 0 && facts.refused.length === 0)
    return stringExpression(facts, conversion);
  const languages = [...namesLanguages(parts, conversion), othersOf(automatonOf(choiceOf(names.map(text))))];
  const key = `keys ${pointerOf(facts)} except ${names.join(' ')}`;
  return automatonString(languages.reduce(bothOf), conversion, key);
}

/**
 * Keys that differ from all declared ones. They are told apart within the first characters, as many as keep the number of beginnings small:
 * for each one the compiler looks at the whole vocabulary. So some keys that only differ later are never written.
 */
function keyExcept(names: readonly string[]): Expression {
  if (names.length === 0) return ANY_STRING;
  let depth = 1;
  while (beginningsOf(names, depth + 1).size <= MAX_BEGINNINGS && names.some((name) => name.length > depth)) depth++;
  return sequence(text('"'), differing(names, '', depth));
}

function beginningsOf(names: readonly string[], depth: number): Set<string> {
  return new Set(
    names.flatMap((name) => Array.from({ length: Math.min(depth, name.length + 1) }, (_, i) => name.slice(0, i))),
  );
}

/** Returns what may follow a beginning that some names have. */
function differing(names: readonly string[], beginning: string, depth: number): Expression {
  const own = names.filter((name) => name.startsWith(beginning));
  const next = new Set(own.flatMap((name) => Array.from(name.slice(beginning.length))[0] ?? []));
  const rest = sequence(repeat(ANY_CHARACTER, 0), text('"'));
  const other = sequence(spelledSet(complementOf(charactersOf([...next].join('')))), rest);
  const isName = own.includes(beginning);
  const deeper =
    Array.from(beginning).length + 1 < depth
      ? [...next].map((character) => sequence(spelled(text(character)), differing(names, beginning + character, depth)))
      : [];
  return choice(isName ? NEVER : text('"'), other, ...deeper);
}
