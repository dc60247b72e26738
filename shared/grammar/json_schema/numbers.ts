/** Integers and numbers: bounds and multiples. */
import { ANY_INTEGER, ANY_NUMBER } from '../any_json.ts';
import type { Expression } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Bound, rangeExpression, type ScaledRange, scaledRange } from './decimal_range.ts';
import { type Facts, numbersOf, pointerOf } from './facts.ts';
import { integerFormats } from './formats.ts';
import { multiplesCost, multiplesExpression } from './multiples.ts';

/** Rules for one `multipleOf` (P1). */
const MAX_MULTIPLE_RULES = 1500;

/** Returns the numbers that satisfy the facts. */
export function numberExpression(facts: Facts, isInteger: boolean, conversion: Conversion): Expression {
  const modulus = modulusOf(facts);
  const [lower, upper] = boundsOf(facts);
  if (modulus === undefined) {
    if (!lower && !upper)
      return conversion.rule(isInteger ? 'integer' : 'number', () => (isInteger ? ANY_INTEGER : ANY_NUMBER));
    const range = scaledRange(lower, upper, isInteger);
    return conversion.rule(keyOf(isInteger ? 'integer' : 'number', range), () => rangeExpression(range));
  }
  const range = scaledRange(lower, upper, true);
  if (multiplesCost(range, modulus) > MAX_MULTIPLE_RULES)
    throw new SchemaError(
      pointerOf(facts, 'multipleOf'),
      `multipleOf ${modulus} is too large to enforce: use a smaller one, smaller bounds, or an enum`,
    );
  return conversion.rule(keyOf(`multiple of ${modulus}`, range), () => multiplesExpression(range, modulus, conversion));
}

function keyOf(kind: string, { low, high, digits }: ScaledRange): string {
  return `${kind} ${low} to ${high} with ${digits} digits`;
}

/** The least common multiple of all `multipleOf`. @throws SchemaError for fractions */
function modulusOf(facts: Facts): number | undefined {
  let modulus: number | undefined;
  for (const { value, pointer } of numbersOf(facts, 'multipleOf')) {
    if (!Number.isSafeInteger(value))
      throw new SchemaError(
        pointer,
        `multipleOf ${value} cannot be enforced: only integers can. Use a pattern on a string, or bounds`,
      );
    modulus = modulus === undefined ? value : (modulus / greatestCommonDivisor(modulus, value)) * value;
  }
  return modulus;
}

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

/** The tightest bounds of all keywords and formats. */
export function boundsOf(facts: Facts): [lower: Bound | undefined, upper: Bound | undefined] {
  const formatted = (facts.keywords.get('format') ?? []).flatMap(({ value }) => {
    const range = typeof value === 'string' ? integerFormats.get(value) : undefined;
    return range ? [range] : [];
  });
  const inclusive = (value: number): Bound => ({ value, isExclusive: false });
  const all = (keyword: string, isExclusive: boolean): Bound[] =>
    numbersOf(facts, keyword).map(({ value }) => ({ value, isExclusive }));
  return [
    tightest(
      [...all('minimum', false), ...all('exclusiveMinimum', true), ...formatted.map(([min]) => inclusive(min))],
      1,
    ),
    tightest(
      [...all('maximum', false), ...all('exclusiveMaximum', true), ...formatted.map(([, max]) => inclusive(max))],
      -1,
    ),
  ];
}

/** @param sign 1 for the largest, -1 for the smallest */
function tightest(bounds: readonly Bound[], sign: number): Bound | undefined {
  return bounds.reduce<Bound | undefined>((best, bound) => {
    if (!best || bound.value * sign > best.value * sign) return bound;
    return bound.value === best.value && bound.isExclusive ? bound : best;
  }, undefined);
}
