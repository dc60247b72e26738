/**
 * Schemas as grammars, judged by ajv: every text of a grammar is valid, and valid texts in the same spelling are taken. 1,000 schemas
 * of nine categories; each enforced keyword has a text that must be refused.
 */
import { Ajv, type ValidateFunction } from 'ajv';
import addFormats from 'ajv-formats';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { toEbnf } from '../../shared/grammar/ebnf.ts';
import { convertSchema } from '../../shared/grammar/json_schema/convert_schema.ts';
import { SchemaError } from '../../shared/grammar/json_schema/converted_schema.ts';
import { sized } from '../support/long.ts';
import { LibraryMatcher } from './library_matcher.ts';
import { matches } from './naive_match.ts';
import { TextSampler } from './sample_text.ts';
import { categories } from './schemas.ts';

const options = { strict: false, logger: false } as const;
const [draft7, newest] = [new Ajv(options), new Ajv2020(options)];
addFormats.default(draft7);
addFormats.default(newest);

function validatorOf(schema: Record<string, unknown>): ValidateFunction {
  return (String(schema['$schema']).includes('draft-07') ? draft7 : newest).compile(schema);
}

const NUM_SCHEMAS = sized(1000, 100);
const MIN_TAKEN = 0.8;

test(`${NUM_SCHEMAS} schemas: every text is valid, at most a tenth are refused, and valid texts nearby are taken`, () => {
  const names = Object.keys(categories);
  let [numRefused, numValid, numTaken] = [0, 0, 0];
  for (let seed = 1; seed <= NUM_SCHEMAS; seed++) {
    const random = new Random(seed);
    const schema = categories[names[seed % names.length]!]!(random);
    let grammar;
    try {
      ({ grammar } = convertSchema(schema));
    } catch (error) {
      if (!(error instanceof SchemaError)) throw error;
      numRefused++;
      continue;
    }
    toEbnf(grammar);
    const validate = validatorOf(schema);
    const sampler = new TextSampler(grammar, random);
    for (let i = 0; i < 6; i++) {
      const text = sampler.sample();
      const value: unknown = JSON.parse(text);
      expect(validate(value), `seed ${seed}: ${JSON.stringify(schema)} ${text}`).toBe(true);
      if (text.length > 120) continue;
      const changed = JSON.stringify(mutated(value, random));
      if (!validate(JSON.parse(changed))) {
        expect(matches(grammar, changed), `seed ${seed}: ${JSON.stringify(schema)} ${changed}`).toBe(false);
        continue;
      }
      numValid++;
      if (matches(grammar, changed)) numTaken++;
    }
  }
  expect(numRefused / NUM_SCHEMAS).toBeLessThan(0.1);
  expect(numValid).toBeGreaterThan(NUM_SCHEMAS / 2);
  expect(numTaken / numValid, `${numTaken} of ${numValid}`).toBeGreaterThan(MIN_TAKEN);
});

/** The value with one of its parts changed, left out or replaced. */
function mutated(value: unknown, random: Random): unknown {
  if (Array.isArray(value) && value.length > 0 && random.chance(2, 3)) {
    const items = [...(value as unknown[])];
    const at = random.below(items.length);
    if (random.chance(1, 3)) items.splice(at, 1);
    else items[at] = mutated(items[at], random);
    return items;
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value) && Object.keys(value).length > 0) {
    const entries = Object.entries(value);
    const at = random.below(entries.length);
    if (random.chance(1, 4)) entries.splice(at, 1);
    else entries[at] = [entries[at]![0], mutated(entries[at]![1], random)];
    return Object.fromEntries(entries);
  }
  if (typeof value === 'number')
    return random.pick([value + 1, value - 1, Math.round(value), -value, value * 10, value / 2]);
  if (typeof value === 'string')
    return random.pick([`${value}a`, value.slice(1), value.toUpperCase(), `${value}é`, 'red', '2024-02-30']);
  return random.pick([null, true, false, 0, 'x', [], {}]);
}

interface Case {
  readonly schema: unknown;
  readonly valid: readonly string[];
  readonly others: readonly string[];
}

const object = (properties: object, more: object = {}): object => ({ type: 'object', properties, ...more });
const cases: Readonly<Record<string, Case>> = {
  type: {
    schema: { type: ['string', 'null'] },
    valid: ['"a"', 'null', '"\\u00e9\\n"'],
    others: ['1', '"\n"', '"\\ud800"', 'nul', ' null'],
  },
  'type integer': { schema: { type: 'integer' }, valid: ['0', '-12'], others: ['1.0', '01', '-0', '1e3'] },
  'type number': {
    schema: { type: 'number' },
    valid: ['0.5', '-0', '1e5', '1E-3'],
    others: ['.5', '1.', '01', '1e999'],
  },
  boolean: { schema: { type: 'boolean' }, valid: ['true', 'false'], others: ['null', '0'] },
  'no schema': { schema: {}, valid: ['1', '{"a": [1, {}]}', '"x"'], others: ['', '[1,]', '{"a"}', '[1 , 2]', '{ }'] },
  'schema true': { schema: true, valid: ['null'], others: ['nil'] },
  enum: {
    schema: { enum: ['a', 1, null, { x: [1] }] },
    valid: ['"a"', '1', 'null', '{"x":[1]}'],
    others: ['"b"', '2', '{"x":[2]}'],
  },
  'enum with siblings': {
    schema: { enum: [1, 5, 'x', 12], type: 'integer', minimum: 3 },
    valid: ['5', '12'],
    others: ['1', '"x"'],
  },
  'enum with not': { schema: { enum: [1, 5, 'x'], not: { const: 5 } }, valid: ['1', '"x"'], others: ['5'] },
  const: { schema: { const: 'a/"b"\n' }, valid: ['"a/\\"b\\"\\n"'], others: ['"a"'] },
  'enum with two patterns': {
    schema: { enum: ['ax', 'bx', 'ay'], allOf: [{ pattern: '^a' }, { pattern: 'x$' }] },
    valid: ['"ax"'],
    others: ['"bx"', '"ay"'],
  },
  'a key that is excluded with open ones': {
    schema: object({ a: false }, { additionalProperties: true }),
    valid: ['{}', '{"b": 1}'],
    others: ['{"a": 1}'],
  },
  'required keys of no schema': {
    schema: object({ a: { type: 'integer' } }, { required: ['', '__proto__', 'a'] }),
    valid: ['{"a": 1, "": null, "__proto__": [2]}'],
    others: ['{"a": 1}', '{"a": 1, "": 1}', '{"a": 1, "": 1, "__proto__": 1, "b": 1}'],
  },
  'keys that others demand, of no schema': {
    schema: object({ a: { type: 'integer' } }, { dependentRequired: { a: ['q'] } }),
    valid: ['{}', '{"a": 1, "q": "x"}'],
    others: ['{"a": 1}', '{"q": 1}'],
  },
  'keys that depend on others, at least two of them': {
    schema: object({ a: {}, b: {}, c: {} }, { dependentRequired: { a: ['b'] }, minProperties: 2 }),
    valid: ['{"a": 1, "b": 1}', '{"b": 1, "c": 1}'],
    others: ['{"b": 1}', '{"a": 1, "c": 1}', '{"b": 1, "zz": 1}'],
  },
  'one of many keys that no schema declares': {
    schema: { type: 'object', oneOf: Array.from({ length: 9 }, (_, i) => ({ required: [`k${i}`] })) },
    valid: ['{"k1": 1}', '{"k8": 1, "z": 2}'],
    others: ['{}', '{"k1": 1, "k2": 1}'],
  },
  'keys that demand others, of no schema, with open ones': {
    schema: { type: 'object', dependentRequired: { b: ['c', 'd'], e: ['f'] } },
    valid: ['{}', '{"z": 1}'],
    others: ['{"b": 1}', '{"e": 1, "c": 1}'],
  },
  'names that are numbers': {
    schema: { type: 'object', propertyNames: { type: 'number' } },
    valid: ['{}'],
    others: ['{"a": 1}'],
  },
  'items that are never there, each once': {
    schema: { type: 'array', items: { not: {} }, uniqueItems: true },
    valid: ['[]'],
    others: ['[1]'],
  },
  'unevaluated with alternatives that are referred to': {
    schema: {
      anyOf: [{ $ref: '#/$defs/a' }, { $ref: '#/$defs/b' }],
      unevaluatedProperties: false,
      $defs: { a: object({ a: {} }, { required: ['a'] }), b: object({ b: {} }, { required: ['b'] }) },
    },
    valid: ['{"a": 1}', '{"b": 1}'],
    others: ['{}', '{"a": 1, "c": 1}'],
  },
  'more items than are described': {
    schema: { type: 'array', prefixItems: [{ type: 'integer' }], minItems: 3 },
    valid: ['[1, "x", null]'],
    others: ['[1, 2]', '[1, 2, 3, 4]', '["x", 2, 3]'],
  },
  'unevaluated with what is merged': {
    schema: {
      ...object({ b: { type: 'integer' } }, { unevaluatedProperties: false, required: ['a'] }),
      allOf: [{ $ref: '#/$defs/base' }],
      $defs: { base: object({ a: { type: 'integer' } }) },
    },
    valid: ['{"b": 1, "a": 2}', '{"a": 2}'],
    others: ['{"b": 1}', '{"a": 1, "c": 1}'],
  },
  'a pattern with a look ahead, and a length': {
    schema: { type: 'string', pattern: '^(?!.*--)[a-z-]+$', minLength: 2, maxLength: 4 },
    valid: ['"a-b"', '"ab"'],
    others: ['"a--b"', '"a"', '"abcde"'],
  },
  'keys by a pattern with a look ahead': {
    schema: { type: 'object', patternProperties: { '^(?!_)\\w+$': { type: 'integer' } }, additionalProperties: false },
    valid: ['{"a_": 1}', '{}'],
    others: ['{"_a": 1}', '{"a": "x"}'],
  },
  nullable: { schema: { type: 'string', nullable: true }, valid: ['null', '"x"'], others: ['1'] },
  minimum: { schema: { type: 'integer', minimum: 5 }, valid: ['5', '9', '10', '100'], others: ['4', '3', '-9', '0'] },
  'minimum below 0': {
    schema: { type: 'integer', minimum: -5 },
    valid: ['-5', '-1', '0', '77'],
    others: ['-6', '-10'],
  },
  maximum: { schema: { type: 'integer', maximum: -5 }, valid: ['-5', '-10', '-123'], others: ['-4', '0', '5'] },
  'both bounds': {
    schema: { type: 'integer', minimum: 3, maximum: 250 },
    valid: ['3', '10', '99', '199', '250'],
    others: ['2', '251', '1000'],
  },
  exclusiveMinimum: { schema: { type: 'integer', exclusiveMinimum: 0 }, valid: ['1', '10'], others: ['0', '-1'] },
  exclusiveMaximum: {
    schema: { type: 'number', exclusiveMaximum: 1 },
    valid: ['0.999', '-7', '0'],
    others: ['1', '1.0', '1.5'],
  },
  'bounds of a number': {
    schema: { type: 'number', minimum: 0, maximum: 1 },
    valid: ['0', '1', '0.5', '1.0', '0.0'],
    others: ['1.5', '-0.1', '1.01', '2'],
  },
  'fractional bounds': {
    schema: { type: 'number', minimum: 0.5, maximum: 2.5 },
    valid: ['0.5', '2.5', '2', '2.49', '0.51'],
    others: ['0.49', '2.51', '3', '0'],
  },
  multipleOf: {
    schema: { type: 'integer', multipleOf: 7 },
    valid: ['0', '7', '-14', '777'],
    others: ['1', '8', '-15'],
  },
  'multipleOf in bounds': {
    schema: { type: 'integer', multipleOf: 25, minimum: 30, maximum: 120 },
    valid: ['50', '75', '100'],
    others: ['25', '125', '60', '0'],
  },
  minLength: {
    schema: { type: 'string', minLength: 2 },
    valid: ['"ab"', '"é日"', '"\\n\\n"', '"😀a"'],
    others: ['"a"', '"😀"', '""'],
  },
  maxLength: {
    schema: { type: 'string', maxLength: 3 },
    valid: ['""', '"abc"', '"\\u00e9\\"\\\\"', '"日本語"'],
    others: ['"abcd"', '"\\n\\n\\n\\n"'],
  },
  'long maxLength': {
    schema: { type: 'string', minLength: 2, maxLength: 200 },
    valid: [`"${'é'.repeat(200)}"`, '"ab"'],
    others: [`"${'é'.repeat(201)}"`, '"a"'],
  },
  pattern: {
    schema: { type: 'string', pattern: 'b' },
    valid: ['"b"', '"abc"', '"\\"b\\n"'],
    others: ['"a"', '"a"b"', 'b'],
  },
  'anchored pattern': {
    schema: { type: 'string', pattern: '^[^a]+$' },
    valid: ['"b\\"\\\\é"'],
    others: ['"ba"', '"b"b"', '"\n"'],
  },
  'pattern and length': {
    schema: { type: 'string', pattern: '^[a-z]+$', maxLength: 3 },
    valid: ['"a"', '"abc"'],
    others: ['"abcd"', '""'],
  },
  'two patterns': {
    schema: { allOf: [{ pattern: '^[a-c]+$' }, { pattern: 'abc' }] },
    valid: ['"aabcc"'],
    others: ['"aac"', '"abcd"'],
  },
  'format date': {
    schema: { type: 'string', format: 'date' },
    valid: ['"2024-02-29"', '"2023-12-31"'],
    others: ['"2023-02-29"', '"2024-02-31"', '"2024-13-01"', '"2024-1-1"'],
  },
  'format date-time': {
    schema: { format: 'date-time' },
    valid: ['"2024-01-01T10:00:00Z"', '"2024-01-01T10:00:00.5+01:00"'],
    others: ['"2024-01-01T10:60:00Z"', '"2024-01-01"'],
  },
  'format uuid': {
    schema: { format: 'uuid' },
    valid: ['"123e4567-e89b-12d3-a456-426614174000"'],
    others: ['"123e4567"'],
  },
  'format int32': {
    schema: { type: 'integer', format: 'int32' },
    valid: ['2147483647', '-2147483648'],
    others: ['2147483648'],
  },
  properties: {
    schema: object({ a: { type: 'integer' }, b: {} }),
    valid: ['{}', '{"a":1}', '{"a": 1, "b": [2]}', '{"b":null}'],
    others: ['{"a":"x"}', '{"c":1}', '{"b":1,"a":1}', '{"a":1,"a":1}'],
  },
  required: {
    schema: object({ a: {}, b: {} }, { required: ['b'] }),
    valid: ['{"b":1}', '{"a":1,"b":2}'],
    others: ['{}', '{"a":1}'],
  },
  'required without properties': { schema: { type: 'object', required: ['x'] }, valid: ['{"x":1}'], others: ['{}'] },
  'odd names': {
    schema: object({ 'a"b\\\n': {}, 'é/~': {} }, { required: ['a"b\\\n', 'é/~'] }),
    valid: ['{"a\\"b\\\\\\n":1,"é/~":2}'],
    others: ['{}'],
  },
  additionalProperties: {
    schema: object({ ab: { type: 'integer' } }, { additionalProperties: { type: 'string' } }),
    valid: ['{"ab":1,"x":"y"}', '{"x":"y","ba":"z"}', '{"b":"","":""}'],
    others: ['{"x":1}', '{"x":"y","ab":"z"}', '{"ab":"z"}'],
  },
  'additionalProperties false': {
    schema: { type: 'object', additionalProperties: false },
    valid: ['{}'],
    others: ['{"a":1}'],
  },
  'open object': { schema: { type: 'object' }, valid: ['{}', '{"a":{"b":[]}}'], others: ['[]'] },
  patternProperties: {
    schema: {
      type: 'object',
      patternProperties: { '^x-': { type: 'integer' } },
      additionalProperties: { type: 'null' },
    },
    valid: ['{"x-a":1,"y":null}'],
    others: ['{"x-a":null}', '{"y":1}'],
  },
  'patternProperties with properties': {
    schema: object({ 'x-a': { minimum: 3 } }, { patternProperties: { '^x-': { type: 'integer' } } }),
    valid: ['{"x-a":3,"x-b":1}'],
    others: ['{"x-a":1}', '{"x-a":3.5}', '{"x-b":1,"x-a":1}', '{"y":1}'],
  },
  propertyNames: {
    schema: { type: 'object', propertyNames: { pattern: '^[a-z]{2}$' } },
    valid: ['{"ab":1}', '{}'],
    others: ['{"abc":1}', '{"A":1}'],
  },
  'propertyNames of an enum': {
    schema: { type: 'object', propertyNames: { enum: ['a', 1, 'b'] }, additionalProperties: { type: 'integer' } },
    valid: ['{"a":1}', '{"b":1,"a":2}', '{}'],
    others: ['{"c":1}', '{"1":1}'],
  },
  minProperties: {
    schema: object({ a: {}, b: {}, c: {} }, { minProperties: 2 }),
    valid: ['{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'],
    others: ['{}', '{"b":1}'],
  },
  maxProperties: {
    schema: object({ a: {}, b: {}, c: {} }, { maxProperties: 1 }),
    valid: ['{}', '{"b":1}'],
    others: ['{"a":1,"b":1}'],
  },
  dependentRequired: {
    schema: object({ a: {}, b: {}, c: {} }, { dependentRequired: { a: ['b'] } }),
    valid: ['{"a":1,"b":1}', '{"b":1}', '{"c":1}', '{}'],
    others: ['{"a":1}', '{"a":1,"c":1}'],
  },
  items: {
    schema: { type: 'array', items: { type: 'integer' } },
    valid: ['[]', '[1]', '[1, 2,3]'],
    others: ['["a"]', '[1,]', '[1 ,2]', '[ ]'],
  },
  'draft 7 items': {
    schema: {
      $schema: 'http://json-schema.org/draft-07/schema#',
      items: [{ type: 'integer' }],
      additionalItems: { type: 'string' },
    },
    valid: ['[1,"a","b"]', '[]'],
    others: ['["a"]', '[1,2]'],
  },
  prefixItems: {
    schema: { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'string' }], minItems: 1 },
    valid: ['[1,"a"]', '[1]'],
    others: ['[]', '["a"]', '[1,"a",2]'],
  },
  minItems: {
    schema: { type: 'array', items: { type: 'null' }, minItems: 2 },
    valid: ['[null,null]'],
    others: ['[null]', '[]'],
  },
  maxItems: {
    schema: { type: 'array', items: { type: 'null' }, maxItems: 40 },
    valid: ['[]', `[${Array(40).fill('null').join()}]`],
    others: [`[${Array(41).fill('null').join()}]`],
  },
  uniqueItems: {
    schema: { type: 'array', items: { enum: ['a', 'b', 'c'] }, uniqueItems: true },
    valid: ['[]', '["b","a"]'],
    others: ['["a","a"]', '["a","b","a"]'],
  },
  contains: {
    schema: { type: 'array', items: { type: 'integer' }, contains: { minimum: 10 }, maxItems: 3 },
    valid: ['[10]', '[1,2,30]', '[11,1]'],
    others: ['[]', '[1,2]', '[1,2,3,40]'],
  },
  anyOf: {
    schema: { anyOf: [{ type: 'string', maxLength: 1 }, { type: 'integer' }] },
    valid: ['"a"', '12'],
    others: ['"ab"', 'true'],
  },
  'anyOf with properties': {
    schema: object(
      { a: { type: 'integer' }, b: { type: 'integer' } },
      { anyOf: [{ required: ['a'] }, { required: ['b'] }] },
    ),
    valid: ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
    others: ['{}'],
  },
  oneOf: {
    schema: {
      oneOf: [
        object({ k: { const: 'a' }, v: {} }, { required: ['k'] }),
        object({ k: { const: 'b' } }, { required: ['k'] }),
      ],
    },
    valid: ['{"k":"a","v":1}', '{"k":"b"}'],
    others: ['{"k":"c"}', '{"k":"b","v":1}'],
  },
  'oneOf of patterns': {
    schema: {
      oneOf: [
        { type: 'string', pattern: '^a' },
        { type: 'string', pattern: '^b' },
      ],
    },
    valid: ['"ax"', '"b"'],
    others: ['"c"'],
  },
  'oneOf required': {
    schema: object({ a: {}, b: {} }, { oneOf: [{ required: ['a'] }, { required: ['b'] }] }),
    valid: ['{"a":1}', '{"b":1}'],
    others: ['{}', '{"a":1,"b":1}'],
  },
  allOf: {
    schema: {
      allOf: [object({ a: { minimum: 3 } }, { required: ['a'] }), { properties: { a: { type: 'integer' }, b: {} } }],
    },
    valid: ['{"a":3,"b":1}', '{"a":5}'],
    others: ['{"a":2}', '{"b":1}', '{"a":3.5}'],
  },
  $ref: {
    schema: { $ref: '#/$defs/a~1b', maximum: 5, $defs: { 'a/b': { type: 'integer' } } },
    valid: ['5', '-9'],
    others: ['6', '"a"'],
  },
  'recursive $ref': {
    schema: object({ v: { type: 'integer' }, next: { $ref: '#' } }, { required: ['v'] }),
    valid: ['{"v":1,"next":{"v":2,"next":{"v":3}}}'],
    others: ['{"v":1,"next":3}', '{"v":1,"next":{}}'],
  },
  '$anchor and $id': {
    schema: {
      $id: 'http://x/root',
      anyOf: [{ $ref: '#here' }, { $ref: 'http://x/root#/$defs/n' }],
      $defs: { h: { $anchor: 'here', const: 1 }, n: { const: 2 } },
    },
    valid: ['1', '2'],
    others: ['3'],
  },
};

describe('each keyword takes valid texts and refuses others', () => {
  test.each(Object.entries(cases))('%s', (_, { schema, valid, others }) => {
    const { grammar, ignored } = convertSchema(schema);
    toEbnf(grammar);
    for (const text of valid) expect(matches(grammar, text), text).toBe(true);
    for (const text of others) expect(matches(grammar, text), text).toBe(false);
    expect(ignored).toEqual([]);
  });
});

test('what restricts nothing is listed', () => {
  const { ignored } = convertSchema(
    object({ a: { type: 'string', format: 'phone', 'x-order': 1 }, b: { default: 1, title: 'b' } }),
  );
  expect(ignored).toEqual(['/properties/a/x-order', '/properties/a/format']);
});

const deep = (levels: number): unknown => {
  let schema: unknown = { type: 'integer' };
  for (let i = 0; i < levels; i++) schema = object({ a: schema }, { required: ['a'] });
  return schema;
};

test.each([
  [{ not: { type: 'string' } }, '/not', /not cannot be enforced/],
  [object({ a: { if: {}, then: {} } }), '/properties/a/if', /if cannot be enforced/],
  [{ type: 'array', items: { type: 'string' }, uniqueItems: true }, '/uniqueItems', /at most 8 values/],
  [{ type: 'number', multipleOf: 0.01 }, '/multipleOf', /only integers/],
  [{ type: 'integer', multipleOf: 12345 }, '/multipleOf', /too large/],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, '/oneOf', /alternative 0 may satisfy alternative 1/],
  [{ $ref: 'http://example.com/x.json' }, '/$ref', /not in this schema/],
  [{ $ref: '#/$defs/none' }, '/$ref', /refers to nothing/],
  [{ type: 'string', pattern: '(?<=a(?=b))c' }, '/pattern', /\(\?=b\) within a lookbehind/],
  [{ type: 'string', pattern: '(?=a)b' }, '', /no value can satisfy/],
  [{ type: 'string', pattern: '(a)\\1' }, '/pattern', /backreference/],
  [{ type: 'string', pattern: '(' }, '/pattern', /invalid/],
  [{ type: 'string', maxLength: 100_000 }, '/maxLength', /at most 10000/],
  [{ type: 'array', maxItems: 1_000_000 }, '/maxItems', /at most 10000/],
  [{ type: 'strin' }, '/type', /invalid at \/type/],
  [{ required: 'a' }, '/required', /invalid/],
  ['text', '', /object or a boolean/],
  [false, '', /no value/],
  [object({ a: { $ref: '#' } }, { required: ['a'] }), '', /no value/],
  [{ type: 'integer', minimum: 5, maximum: 4 }, '', /no value/],
  [{ type: 'string', enum: [1, 2] }, '', /no value/],
])('refused by its pointer: %j', (schema, pointer, message) => {
  const refusal = (): unknown => convertSchema(schema);
  expect(refusal).toThrow(SchemaError);
  expect(refusal).toThrow(message);
  expect(refusal).toThrow(expect.objectContaining({ pointer }) as Error);
});

test('the library takes the texts of schemas as they are printed', async () => {
  const library = await LibraryMatcher.load();
  const names = Object.keys(categories);
  for (let seed = 1; seed <= sized(300, 27); seed++) {
    const random = new Random(seed);
    const schema = categories[names[seed % names.length]!]!(random);
    let grammar;
    try {
      ({ grammar } = convertSchema(schema));
    } catch (error) {
      expect(error).toBeInstanceOf(SchemaError);
      continue;
    }
    const ebnf = toEbnf(grammar);
    const sampler = new TextSampler(grammar, random);
    for (let i = 0; i < 3; i++) {
      const text = sampler.sample();
      expect(await library.accepts(ebnf, text), `seed ${seed} ${text}`).toBe(true);
      expect(await library.accepts(ebnf, `${text} `)).toBe(false);
    }
  }
});

describe('hostile schemas', () => {
  test('depth is no matter', () => {
    const { grammar } = convertSchema(deep(64));
    expect(matches(grammar, `${'{"a":'.repeat(64)}1${'}'.repeat(64)}`)).toBe(true);
    expect(() => convertSchema(deep(5000))).toThrow(/nests deeper/);
  });
  test('thousands of optional properties make a grammar that is linear in them', () => {
    const many = (count: number): object =>
      object(
        Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, { type: 'integer', minimum: i % 7 }])),
      );
    const [small, large] = [500, 5000].map((count) => toEbnf(convertSchema(many(count)).grammar).length);
    expect(large! / small!).toBeLessThan(12);
  });
  test('alternatives next to alternatives do not multiply without a bound', () => {
    const anyOf = Array.from({ length: 40 }, (_, i) => ({ properties: { [`p${i}`]: {} } }));
    expect(() => convertSchema({ allOf: [{ anyOf }, { anyOf }, { anyOf }] })).toThrow(/combinations/);
  });
  test('a pattern that takes an engine exponential time does not stop the conversion', () => {
    const slow = `${'a'.repeat(60)}!`;
    const { grammar } = convertSchema({ enum: [slow, 'aa'], pattern: '^(a+)+$' });
    expect(matches(grammar, '"aa"')).toBe(true);
    expect(matches(grammar, JSON.stringify(slow))).toBe(false);
  });
  test('repetitions within repetitions are bounded', () => {
    const pattern = `^${'('.repeat(6)}a|b${'){31}'.repeat(6)}$`;
    expect(() => toEbnf(convertSchema({ type: 'string', pattern }).grammar)).toThrow(/repetitions within repetitions/);
  });
  test('alternatives of arrays and keys do not share what differs between them', () => {
    const anyOf = [
      { items: { enum: ['a', 'b'] } },
      { items: { enum: [1, 2] }, uniqueItems: true },
      object({ 'x-a': {} }, { required: ['x-a'] }),
    ];
    const { grammar } = convertSchema({
      type: ['array', 'object'],
      uniqueItems: true,
      patternProperties: { '^x': { type: 'integer' } },
      anyOf,
    });
    for (const text of ['["a","b"]', '[2,1]', '{"x-a":1,"x-b":2}']) expect(matches(grammar, text), text).toBe(true);
    for (const text of ['["a","a"]', '[1,"a"]', '{"x-a":null}']) expect(matches(grammar, text), text).toBe(false);
  });
  test('patterns and names that are not used cost nothing', () => {
    const record = { type: 'object', propertyNames: { type: 'string' }, additionalProperties: { type: 'number' } };
    const records = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`p${i}`, record]));
    convertSchema(object({ ...records, long: { type: 'string', pattern: '^[a-z]{1,2000}$' } }));
  });

  test('automata are bounded', () => {
    expect(() => convertSchema({ type: 'string', pattern: '(a|b)*a(a|b){20}', minLength: 30 })).toThrow(/states/);
  });
});
