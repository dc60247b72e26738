/** Keys of objects as one schema speaks of them: declared ones, those of patterns, and all others. */
import { type Automaton, automatonOf } from '../automaton.ts';
import type { Conversion } from './conversion.ts';
import { inPlaceOf } from './facts.ts';
import { isSchema, type Located, pointerTo } from './schema_source.ts';
import { located as locatedError, patternAt } from './strings.ts';
import { isNothing } from './trivial_schemas.ts';

/** A pattern of keys, and the schema of their values. */
export interface KeyPattern {
  readonly pattern: string;
  readonly pointer: string;
  readonly value: Located;
  /** Made when it is first needed: one pattern alone needs none. */
  readonly automaton: () => Automaton;
}

/** Keys as one schema speaks of them. */
export interface KeySource {
  readonly declared: ReadonlyMap<string, Located>;
  readonly patterns: readonly KeyPattern[];
  /** The schema of all other keys; undefined: not said. */
  readonly additional: Located | undefined;
  /**
   * With `unevaluatedProperties` as `additional`: whether it knows the keys of another schema, by its pointer, and so says nothing of them. Undefined:
   * `additional` holds for all keys that this schema does not name.
   */
  readonly knows: ((pointer: string) => boolean) | undefined;
  readonly pointer: string;
}

/** Returns what a schema says of keys; undefined: nothing. */
export function keySourceOf(located: Located, conversion: Conversion): KeySource | undefined {
  const { schema, pointer } = located;
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
    additional: isSchema(additional)
      ? { schema: isNothing(additional) ? false : additional, pointer: pointerTo(pointer, keyword) }
      : undefined,
    knows:
      additional !== undefined && keyword === 'unevaluatedProperties'
        ? inPlaceOf(located, conversion.source)
        : undefined,
    pointer,
  };
}

function entriesOf(value: unknown, pointer: string): [string, Located][] {
  if (!isSchema(value) || typeof value === 'boolean') return [];
  return Object.entries(value).flatMap(([key, schema]) =>
    isSchema(schema) ? [[key, { schema, pointer: pointerTo(pointer, key) }] satisfies [string, Located]] : [],
  );
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
    throw locatedError(error, pointer);
  }
}
