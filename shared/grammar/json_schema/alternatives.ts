/**
 * `anyOf` and `oneOf`. Every alternative is merged with the schemas next to it. `oneOf` allows a value in one alternative only: it is taken
 * where no text of an alternative is valid in another, and refused elsewhere.
 */
import { acceptsNothing, type Automaton, automatonOf, bothOf } from '../automaton.ts';
import { choice, type Expression } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Disjunction, type Facts, withoutDisjunctions } from './facts.ts';
import type { JsonType } from './keywords.ts';
import { boundsOf } from './numbers.ts';
import { propertiesOf } from './properties.ts';
import type { Located } from './schema_source.ts';
import { languagesOf } from './strings.ts';
import { listedValues, typeOf } from './values.ts';

/** Ways to choose one alternative of each disjunction of a value (P1). */
const MAX_COMBINATIONS = 256;

/** Returns the values that satisfy the facts with one alternative of each disjunction. */
export function alternativesExpression(
  facts: Facts,
  disjunctions: readonly Disjunction[],
  conversion: Conversion,
): Expression {
  const kept = facts.disjunctions.filter((one) => !disjunctions.includes(one));
  const base = withoutDisjunctions(facts, kept);
  let combinations: Located[][] = [base];
  for (const { alternatives, isExclusive, pointer } of disjunctions) {
    if (isExclusive) checkExclusive(alternatives, base, pointer, conversion);
    combinations = combinations.flatMap((parts) => alternatives.map((alternative) => [...parts, alternative]));
    if (combinations.length > MAX_COMBINATIONS)
      throw new SchemaError(
        pointer,
        `more than ${MAX_COMBINATIONS} combinations of alternatives cannot be enforced: use fewer`,
      );
  }
  return choice(...combinations.map((parts) => conversion.value(parts)));
}

function checkExclusive(
  alternatives: readonly Located[],
  base: readonly Located[],
  pointer: string,
  conversion: Conversion,
): void {
  if (alternatives.length > MAX_EXCLUSIVE)
    throw new SchemaError(pointer, `oneOf has more than ${MAX_EXCLUSIVE} alternatives: use an enum, or fewer`);
  const all = alternatives.map((alternative) => conversion.facts([...base, alternative]));
  for (const [i, one] of all.entries())
    for (const [j, other] of all.entries())
      if (i !== j && !one.isNever && !areDisjoint(one, other, conversion, 0))
        throw new SchemaError(
          pointer,
          `oneOf cannot be enforced: a value of alternative ${i} may satisfy alternative ${j}, too. Use anyOf, or add a property with a different const to each`,
        );
}

/** Alternatives that are compared with each other (P1). */
const MAX_EXCLUSIVE = 64;
/** Properties within properties that are compared. */
const MAX_COMPARED = 3;

/** Whether no text that is written for `one` is valid for `other`. */
function areDisjoint(one: Facts, other: Facts, conversion: Conversion, depth: number): boolean {
  if (one.isNever || other.isNever) return true;
  const [values, others] = [listedValues(one, conversion), listedValues(other, conversion)];
  if (values && others) {
    const texts = new Set(others.map((value) => JSON.stringify(value)));
    return values.every((value) => !texts.has(JSON.stringify(value)));
  }
  const types = values ? new Set(values.map(typeOf)) : one.types;
  const common = [...types].filter((type) => hasType(other.types, type));
  return common.every((type) => areDisjointIn(type, one, other, conversion, depth));
}

function hasType(types: ReadonlySet<JsonType>, type: JsonType): boolean {
  return types.has(type) || (type === 'integer' && types.has('number')) || (type === 'number' && types.has('integer'));
}

function areDisjointIn(type: JsonType, one: Facts, other: Facts, conversion: Conversion, depth: number): boolean {
  if (one.disjunctions.length > 0 || other.disjunctions.length > 0) return false;
  switch (type) {
    case 'object':
      return areDisjointObjects(one, other, conversion, depth);
    case 'string': {
      const [a, b] = [automataOf(one, conversion), automataOf(other, conversion)];
      const [first, ...rest] = [...a, ...b];
      return first !== undefined && a.length > 0 && b.length > 0 && acceptsNothing(rest.reduce(bothOf, first));
    }
    case 'number':
    case 'integer': {
      const [[low, high], [otherLow, otherHigh]] = [boundsOf(one), boundsOf(other)];
      return (
        (high !== undefined && otherLow !== undefined && high.value < otherLow.value) ||
        (low !== undefined && otherHigh !== undefined && low.value > otherHigh.value)
      );
    }
    case 'array':
    case 'boolean':
    case 'null':
      return false;
  }
}

/** Automata of strings, made once for each alternative: every one is compared with every other. */
const madeAutomata = new WeakMap<Facts, readonly Automaton[]>();

function automataOf(facts: Facts, conversion: Conversion): readonly Automaton[] {
  const made = madeAutomata.get(facts) ?? [...languagesOf(facts, conversion).values()].map(automatonOf);
  madeAutomata.set(facts, made);
  return made;
}

/** Objects differ where the other needs a key that this one never has, or where a key of both has values that differ. */
function areDisjointObjects(one: Facts, other: Facts, conversion: Conversion, depth: number): boolean {
  if (depth >= MAX_COMPARED) return false;
  const [own, theirs] = [propertiesOf(one, conversion), propertiesOf(other, conversion)];
  const names = new Set(own.declared.map(({ name }) => name));
  if (own.others.length === 0 && [...theirs.required].some((name) => !names.has(name))) return true;
  return own.declared.some(({ name, parts }) => {
    const same = theirs.declared.find((property) => property.name === name);
    if (!same || !own.required.has(name)) return false;
    return areDisjoint(conversion.facts(parts), conversion.facts(same.parts), conversion, depth + 1);
  });
}
