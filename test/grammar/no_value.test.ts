/**
 * "No value can satisfy the schema" is said where it is so, and only there: random schemas of objects and arrays against ajv, which tries
 * all small values. Each text that is written instead is valid. Budget: 20 s.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { convertSchema } from '../../shared/grammar/json_schema/convert_schema.ts';
import { SchemaError } from '../../shared/grammar/json_schema/converted_schema.ts';
import { sized } from '../support/long.ts';
import { matches } from './naive_match.ts';
import { TextSampler } from './sample_text.ts';

type Schema = Record<string, unknown> | boolean;

const ajv = new Ajv2020({ strict: false, allErrors: false, logger: false });

/** Schemas that no value satisfies, as libraries write them: Zod's z.never(), and what a reference or a merge makes of it. */
const nothings: readonly Schema[] = [
  ...[false, { not: {} }, { not: true }, { not: {}, description: 'never' }, { not: { title: 'any' } }],
  ...[
    { allOf: [{ not: {} }] },
    { $ref: '#/$defs/Never' },
    { anyOf: [{ not: {} }, false] },
    { type: 'string', not: {} },
  ],
];
/** Schemas that every value satisfies. */
const anythings: readonly Schema[] = [true, {}, { description: 'any' }, { not: false }, { not: { not: {} } }];
const $defs = { Never: { not: {} }, Named: { properties: { a: { type: 'integer' } }, required: ['a'] } };
const NAMES = ['a', 'b', 'x1', 'q', 'é'];
const VALUES = [1, 'x', null];
/** Levels of allOf and anyOf. */
const DEPTH = 2;

/** All objects of up to three of the names, and all arrays of up to three values. */
const smallValues: readonly unknown[] = (() => {
  const objects: [string, unknown][][] = [[]];
  for (const name of NAMES)
    for (const entries of [...objects])
      if (entries.length < 3) for (const value of VALUES) objects.push([...entries, [name, value]]);
  const arrays: unknown[][] = [[]];
  for (let from = 0; from < arrays.length && (arrays[from]?.length ?? 0) < 3; from++)
    for (const value of VALUES) arrays.push([...(arrays[from] ?? []), value]);
  return [
    ...objects.map(
      (entries) =>
        JSON.parse(`{${entries.map((pair) => pair.map((part) => JSON.stringify(part)).join(':')).join()}}`) as unknown,
    ),
    ...arrays,
  ];
})();

function oneOf<T>(random: Random, list: readonly T[]): T {
  return list[random.below(list.length)] as T;
}

function randomPart(random: Random): Schema {
  const kind = random.below(6);
  if (kind < 3) return oneOf<Schema>(random, [{ type: 'integer' }, { type: ['string', 'null'] }, { const: 1 }]);
  return oneOf(random, kind === 3 ? anythings : nothings);
}

function names(random: Random): string[] {
  return NAMES.filter(() => random.chance(1, 3));
}

/** Returns some keywords of objects, or of arrays. */
function randomKeywords(random: Random, isObject: boolean, depth: number): Record<string, unknown> {
  const some = (make: () => unknown, of = 4): unknown => (random.below(of) === 0 ? make() : undefined);
  const part = (): Schema => randomPart(random);
  const whole = (): Record<string, unknown> => randomKeywords(random, isObject, depth - 1);
  const entries = (all: readonly string[]): string =>
    `{${all.map((name) => `${JSON.stringify(name)}:${JSON.stringify(part())}`).join()}}`;
  const merged =
    depth === 0
      ? {}
      : {
          allOf: some(() => [whole(), ...(isObject && random.chance(1, 3) ? [{ $ref: '#/$defs/Named' }] : [])]),
          anyOf: some(() => [whole(), random.chance(1, 3) ? oneOf(random, nothings) : whole()], 6),
        };
  if (!isObject) {
    const unevaluatedItems = some(part, 5);
    return defined({
      // The validator counts items of alternatives neither as evaluated nor as not.
      ...(unevaluatedItems === undefined ? merged : {}),
      unevaluatedItems,
      prefixItems: some(() => [part(), part()].slice(random.below(2)), 2),
      items: some(part),
      minItems: some(() => random.below(4), 2),
      maxItems: some(() => random.below(4)),
    });
  }
  // The validator loses count of what alternatives have evaluated, and of what is evaluated within them.
  const unevaluatedProperties =
    depth === DEPTH && !/anyOf|oneOf/.test(JSON.stringify(merged)) ? some(part, 3) : undefined;
  return defined({
    ...merged,
    unevaluatedProperties,
    properties: some(() => JSON.parse(entries(names(random))) as unknown, 2),
    required: some(() => names(random), 2),
    additionalProperties: some(part),
    patternProperties: some(() => ({ [random.pick(['^x', 'q$'])]: part() }), 5),
    propertyNames: some(() => oneOf<Schema>(random, [...nothings.slice(0, 3), { pattern: '^[abx]' }, true]), 8),
    dependentRequired: some(() => ({ [random.pick(['a', 'q'])]: names(random) }), 5),
    ...(unevaluatedProperties === undefined
      ? { oneOf: some(() => [{ required: ['a'] }, { required: [random.pick(['b', 'q'])] }], 8) }
      : {}),
    minProperties: some(() => random.below(4), 6),
    maxProperties: some(() => random.below(4), 6),
  });
}

function defined(keywords: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(keywords).filter(([, value]) => value !== undefined));
}

/** Returns a validator; what it cannot judge counts as `isValid` says. It fails on some values with `unevaluatedProperties`. */
function validatorOf(schema: object): (value: unknown, isValid: boolean) => boolean {
  const validate = ajv.compile(schema);
  return (value, isValid) => {
    try {
      return validate(value);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      return isValid;
    }
  };
}

test('random schemas: it is said where no small value is valid, and what is written is valid', () => {
  const random = new Random(1);
  const numSchemas = sized(4_000, 800);
  let [numSatisfied, numRefused, numNothing] = [0, 0, 0];
  for (let i = 0; i < numSchemas; i++) {
    const isObject = random.below(4) > 0;
    const schema = { type: isObject ? 'object' : 'array', ...randomKeywords(random, isObject, DEPTH), $defs };
    const validate = validatorOf(schema);
    let grammar;
    try {
      ({ grammar } = convertSchema(schema));
    } catch (error) {
      if (!(error instanceof SchemaError)) throw error;
      if (error.message.includes('no value can satisfy')) {
        const found = smallValues.find((value) => validate(value, false));
        expect(found === undefined ? '' : `${JSON.stringify(schema)} takes ${JSON.stringify(found)}`).toBe('');
        numNothing++;
      } else numRefused++;
      continue;
    }
    const sampler = new TextSampler(grammar, random);
    for (let n = 0; n < 4; n++) {
      const text = sampler.sample();
      expect(validate(JSON.parse(text), true), `${JSON.stringify(schema)} ${text}`).toBe(true);
    }
    for (let n = 0; n < 20; n++) {
      const text = JSON.stringify(oneOf(random, smallValues));
      if (matches(grammar, text))
        expect(validate(JSON.parse(text), true), `${JSON.stringify(schema)} ${text}`).toBe(true);
    }
    numSatisfied++;
  }
  expect(numSatisfied).toBeGreaterThan(numSchemas / 3);
  expect(numNothing).toBeGreaterThan(numSchemas / 20);
  expect(numRefused).toBeLessThan(numSchemas / 4);
});
