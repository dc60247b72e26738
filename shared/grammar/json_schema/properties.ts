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
import { type Facts, largest, pointerOf, smallest } from './facts.ts';
import { type KeyPattern, type KeySource, keySourceOf } from './key_sources.ts';
import { presenceOf } from './presence.ts';
import { demandedNames, demandingNames } from './presence_rules.ts';
import { isSchema, type Located } from './schema_source.ts';
import { automatonString, languagesOf, lengthBounds, patternAt, stringExpression } from './strings.ts';
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
  /** Keys that no schema declares, and that must be there because of others. */
  readonly implied: ReadonlySet<string>;
  readonly others: readonly KeyKind[];
}

const known = new WeakMap<Facts, Properties>();

/** Returns the keys that the facts allow. */
export function propertiesOf(facts: Facts, conversion: Conversion): Properties {
  const properties = known.get(facts) ?? findProperties(facts, conversion);
  known.set(facts, properties);
  return properties;
}

function findProperties(facts: Facts, conversion: Conversion): Properties {
  const sources = facts.schemas.flatMap((one) => keySourceOf(one, conversion) ?? []);
  const declaredNames = new Set(sources.flatMap(({ declared }) => [...declared.keys()]));
  const required = requiredOf(facts);
  const implied = new Set([...demandedNames(facts)].filter((name) => !declaredNames.has(name)));
  const names = new Set([...declaredNames, ...required, ...implied]);
  const patterns = sources.flatMap((source) => source.patterns);
  const keyTest = keyTestOf(facts, conversion);
  const declared = [...names].flatMap((name): Property[] => {
    const parts = keyTest(name) ? partsOf(name, sources) : undefined;
    return parts ? [{ name, parts }] : [];
  });
  const canBe = (parts: readonly Located[]): boolean => !conversion.facts(parts).isNever;
  /** Whether the keys that may be there together are always fewer than there must be, or more than there may be. */
  const isShort = (): boolean => {
    const [min, max] = [largest(facts, 'minProperties') ?? 0, smallest(facts, 'maxProperties') ?? Infinity];
    const possible = declared.filter(({ parts }) => canBe(parts));
    return !presenceOf(facts, { declared: possible, required, implied }).some(({ present, absent }) => {
      const most = possible.filter(({ name }) => !absent.has(name)).length;
      return most >= min && required.size + present.size <= max;
    });
  };
  const isOpen =
    sources.some(({ additional }) => additional) ||
    (patterns.length === 0 && declaredNames.size === 0) ||
    (facts.keywords.has('minProperties') && !patterns.some(({ value }) => canBe([value])) && isShort());
  // Keys that demand others, and that no schema declares, are never written.
  const others = otherKinds(facts, sources, [...new Set([...names, ...demandingNames(facts)])], isOpen, conversion);
  return { declared, required, implied, others };
}

function requiredOf(facts: Facts): Set<string> {
  const lists = (facts.keywords.get('required') ?? []).map(({ value }) => value);
  return new Set(lists.flatMap((list) => (Array.isArray(list) ? list.filter((name) => typeof name === 'string') : [])));
}

/** Returns what all schemas say of a key that one of them names; undefined: the key is not allowed. */
function partsOf(name: string, sources: readonly KeySource[]): Located[] | undefined {
  const own = sources.map((source) => ownParts(name, source));
  const parts = own.flatMap((found, i): Located[] => {
    const source = sources[i];
    if (found.length > 0 || !source?.additional) return found;
    return isKnownElsewhere(source, sources, (other) => own[sources.indexOf(other)]?.length !== 0)
      ? []
      : [source.additional];
  });
  return parts.some(({ schema }) => schema === false) ? undefined : parts;
}

function ownParts(name: string, { declared, patterns }: KeySource): Located[] {
  const own = declared.get(name);
  const matching = patterns.filter(({ automaton }) => acceptsText(automaton(), name)).map(({ value }) => value);
  return own ? [own, ...matching] : matching;
}

/** Whether `unevaluatedProperties` says nothing of keys because a schema that it knows does; `names`: whether a schema names them. */
function isKnownElsewhere(
  source: KeySource,
  sources: readonly KeySource[],
  names: (other: KeySource) => boolean,
): boolean {
  const { knows } = source;
  if (!knows) return false;
  return sources.some((other) => other !== source && knows(other.pointer) && (other.additional || names(other)));
}

/** Schemas of `propertyNames`. */
function nameParts(facts: Facts): Located[] {
  return (facts.keywords.get('propertyNames') ?? []).flatMap(({ value, pointer }) =>
    isSchema(value) ? [{ schema: value, pointer }] : [],
  );
}

/** Whether no key satisfies what is said of keys: they are strings. */
function hasNoNames({ isNever, types, hasType }: Facts): boolean {
  return isNever || (hasType && !types.has('string'));
}

function keyTestOf(facts: Facts, conversion: Conversion): (name: string) => boolean {
  const parts = nameParts(facts);
  // Made when a name is tested: a validator has a limit, and most of these say only that keys are strings.
  let validator: ((name: string) => boolean) | undefined;
  return (name) => parts.length === 0 || (validator ??= conversion.source.validatorOf(parts))(name);
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
  if (parts.length > 0 && hasNoNames(conversion.facts(parts))) return [];
  const rest = sources.flatMap((source) =>
    source.additional && !isKnownElsewhere(source, sources, () => false) ? [source.additional] : [],
  );
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
    const isMatching = (source: KeySource): boolean => matching.some((pattern) => pattern.source === source);
    const additional = sources.flatMap((source) =>
      source.additional && !isMatching(source) && !isKnownElsewhere(source, sources, isMatching)
        ? [source.additional]
        : [],
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
    throw new SchemaError(pointerOf(facts), 'propertyNames can be enforced next to properties by a pattern only');
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
