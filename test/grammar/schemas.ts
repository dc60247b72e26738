/**
 * Schemas as requests have them, by the categories of JSONSchemaBench: function signatures, configuration files, resources of an orchestrator,
 * records of an API, trees and unions, packages, and the schemas that Pydantic and Zod write. Each is random, from a seed.
 */
import type { Random } from '../../shared/base/random.ts';

type Schema = Record<string, unknown>;

const NAMES = [
  ...[
    'name',
    'id',
    'type',
    'value',
    'description',
    'count',
    'price',
    'enabled',
    'tags',
    'items',
    'metadata',
    'created_at',
    'email',
  ],
  ...[
    'status',
    'address',
    'city',
    'zip',
    'lat',
    'lon',
    'url',
    'version',
    'author',
    'children',
    'options',
    'kind',
    'spec',
    'labels',
  ],
  ...['replicas', 'image', 'ports', 'env', '$ref', 'a/b', 'naïve', 'say "hi"', 'x-y', 'größe', '名前', 'back\\slash'],
] as const;
const WORDS = [
  'red',
  'green',
  'blue',
  'small',
  'large',
  'pending',
  'done',
  'a "quoted" one',
  'line\nbreak',
  'é',
  '日本',
  'N/A',
  '',
];
const PATTERNS = [
  ...[
    '^[a-z][a-z0-9_]*$',
    '^[A-Z]{2,3}-\\d{3,}$',
    '^\\d{5}(-\\d{4})?$',
    '^#[0-9a-fA-F]{6}$',
    '^v?\\d+\\.\\d+\\.\\d+$',
    '^[^\\s]+$',
    'foo',
  ],
  ...[
    '^(GET|POST|PUT)$',
    '^\\+?[1-9]\\d{1,14}$',
    '^.{3,}$',
    '^/([a-z]+/)*$',
    '\\.json$',
    '^[\\w.-]+@[\\w-]+\\.[a-z]{2,}$',
    '^[^"\\\\]*$',
  ],
  ...['^\\p{Lu}\\p{Ll}+$', '[A-Z].*[0-9]', '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$', '^$|^https://'],
] as const;
const FORMATS = [
  ...[
    'date',
    'time',
    'date-time',
    'email',
    'uri',
    'uuid',
    'ipv4',
    'ipv6',
    'hostname',
    'uri-reference',
    'duration',
    'json-pointer',
  ],
  ...['uri-template', 'relative-json-pointer', 'byte', 'password', 'int32', 'phone'],
] as const;

/** The categories, and a schema of each. */
export const categories: Readonly<Record<string, (random: Random) => Schema>> = {
  function_call: (random) => object(random, 2, { isStrict: true }),
  configuration: (random) => ({
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Configuration',
    definitions: { port: { type: 'integer', minimum: 1, maximum: 65535 }, level: { enum: ['debug', 'info', 'warn'] } },
    ...object(random, 3, { definitions: '#/definitions/' }),
  }),
  orchestrator: (random) => ({
    type: 'object',
    properties: {
      apiVersion: { const: random.pick(['v1', 'apps/v1']) },
      kind: { enum: ['Pod', 'Service', 'Deployment'] },
      metadata: {
        type: 'object',
        properties: {
          name: { type: 'string', pattern: '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$', maxLength: 63 },
          labels: { $ref: '#/$defs/labels' },
        },
        required: ['name'],
      },
      spec: object(random, 3, {}),
    },
    required: ['apiVersion', 'kind', 'metadata'],
    $defs: { labels: { type: 'object', additionalProperties: { type: 'string', maxLength: 63 } } },
  }),
  api_record: (random) => ({
    type: 'array',
    items: object(random, 2, {}),
    minItems: random.below(2),
    maxItems: 1 + random.below(5),
  }),
  tree: (random) => ({
    $ref: '#/$defs/node',
    $defs: {
      node: {
        type: 'object',
        properties: {
          value: scalar(random),
          children: { type: 'array', items: { $ref: '#/$defs/node' }, maxItems: 3 },
          parent: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/node' }] },
        },
        required: ['value', ...(random.chance(1, 2) ? ['children'] : [])],
        additionalProperties: false,
      },
    },
  }),
  union: (random) => ({
    [random.pick(['anyOf', 'oneOf'])]: ['circle', 'square', 'line'].slice(0, 2 + random.below(2)).map((kind) => {
      const inner = object(random, 1, {}) as { properties: Schema; required?: string[] };
      return {
        ...inner,
        properties: { ...inner.properties, kind: { const: kind } },
        required: [...new Set([...(inner.required ?? []), 'kind'])],
      };
    }),
  }),
  package_file: (random) => ({
    type: 'object',
    properties: {
      name: { type: 'string', minLength: 1, maxLength: random.pick([10, 64, 214]) },
      version: { type: 'string', pattern: '^\\d+\\.\\d+\\.\\d+$' },
      scripts: { type: 'object', additionalProperties: { type: 'string' } },
      dependencies: {
        type: 'object',
        patternProperties: { '^[a-z@/-]+$': { type: 'string', pattern: '^[~^]?\\d' } },
        additionalProperties: false,
      },
      private: { type: 'boolean' },
    },
    required: ['name', 'version'],
    additionalProperties: random.chance(1, 2),
  }),
  pydantic: (random) => ({
    title: 'Model',
    type: 'object',
    $defs: {
      Color: { enum: ['red', 'green'], title: 'Color', type: 'string' },
      Inner: { title: 'Inner', ...object(random, 1, {}) },
    },
    properties: {
      color: { $ref: '#/$defs/Color', description: 'a color' },
      inner: { allOf: [{ $ref: '#/$defs/Inner' }], title: 'inner' },
      maybe: { anyOf: [scalar(random), { type: 'null' }], default: null },
      pair: { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'string' }], minItems: 2, maxItems: 2 },
      by_name: { type: 'object', additionalProperties: { $ref: '#/$defs/Inner' } },
      when: { type: 'string', format: 'date-time' },
    },
    required: ['color', 'inner', ...(random.chance(1, 2) ? ['pair'] : [])],
  }),
  rare: (random) => rare(random),
};

interface Context {
  readonly isStrict?: boolean;
  /** Where definitions are: references to them may be made. */
  readonly definitions?: string;
}

function object(random: Random, depth: number, context: Context): Schema {
  const names = [...new Set(Array.from({ length: 1 + random.below(6) }, () => random.pick(NAMES)))];
  const properties = Object.fromEntries(names.map((name) => [name, value(random, depth - 1, context)]));
  const required = context.isStrict ? names : names.filter(() => random.chance(1, 2));
  return {
    type: 'object',
    properties,
    ...(required.length > 0 ? { required } : {}),
    ...(context.isStrict
      ? { additionalProperties: false }
      : random.pick([{}, {}, { additionalProperties: false }, { additionalProperties: scalar(random) }])),
  };
}

function value(random: Random, depth: number, context: Context): Schema {
  if (context.definitions !== undefined && random.chance(1, 8))
    return { $ref: `${context.definitions}${random.pick(['port', 'level'])}` };
  if (depth <= 0 || random.chance(1, 2)) return scalar(random);
  switch (random.below(4)) {
    case 0:
      return object(random, depth, context);
    case 1: {
      const minItems = random.below(3);
      return {
        type: 'array',
        items: value(random, depth - 1, context),
        ...(random.chance(1, 2) ? { minItems, maxItems: minItems + random.below(4) } : {}),
      };
    }
    case 2:
      return { anyOf: [value(random, depth - 1, context), { type: 'null' }] };
    default:
      return { allOf: [object(random, depth, context), { description: 'more' }] };
  }
}

function scalar(random: Random): Schema {
  switch (random.below(12)) {
    case 0:
      return { type: 'boolean' };
    case 1:
      return integer(random);
    case 2:
      return number(random);
    case 3:
      return { enum: WORDS.filter(() => random.chance(1, 2)).concat('other') };
    case 4:
      return { const: random.pick<unknown>([1, 'x', null, 1.5, true, 'ü"']) };
    case 5:
      return { type: 'string', pattern: random.pick(PATTERNS) };
    case 6:
      return {
        type: 'string',
        format: random.pick(FORMATS.filter((format) => format !== 'int32') as [string, ...string[]]),
      };
    case 7: {
      const minLength = random.below(4);
      return {
        type: 'string',
        ...(random.chance(1, 2) ? { minLength } : {}),
        maxLength: minLength + random.pick([0, 1, 7, 50, 255, 2000]),
      };
    }
    case 8:
      return {
        type: random.pick<unknown>([
          ['string', 'null'],
          ['integer', 'string'],
          ['number', 'boolean', 'null'],
        ] as const),
      };
    case 9:
      return { type: 'integer', format: 'int32' };
    default:
      return { type: random.pick(['string', 'integer', 'number', 'string']), title: 'a field' };
  }
}

function integer(random: Random): Schema {
  const low = random.pick([-1000, -12, -1, 0, 1, 5, 18, 100]);
  const high = low + random.pick([0, 1, 9, 23, 100, 99_999]);
  return random.pick<Schema>([
    { type: 'integer', minimum: low },
    { type: 'integer', maximum: high },
    { type: 'integer', minimum: low, maximum: high },
    { type: 'integer', exclusiveMinimum: low, exclusiveMaximum: high + 2 },
    { type: 'integer', minimum: 0, multipleOf: random.pick([2, 5, 10, 25]) },
  ]);
}

function number(random: Random): Schema {
  const low = random.pick([-180, -0.5, 0, 0.1, 1, 2.25, 99.99]);
  const high = low + random.pick([0.001, 0.5, 1, 10, 360]);
  return random.pick<Schema>([
    { type: 'number', minimum: low },
    { type: 'number', exclusiveMinimum: low },
    { type: 'number', minimum: low, maximum: high },
    { type: 'number', exclusiveMinimum: low, exclusiveMaximum: high },
    { type: 'number', maximum: high },
  ]);
}

/** Keywords that few schemas have, some of which cannot be enforced. */
function rare(random: Random): Schema {
  const inner = object(random, 1, {});
  return random.pick<() => Schema>([
    () => ({ ...inner, minProperties: 1, maxProperties: 3 }),
    () => ({ type: 'array', items: { enum: ['a', 'b', 'c', 'd'] }, uniqueItems: true, minItems: 1 }),
    () => ({ type: 'array', items: scalar(random), uniqueItems: true }),
    () => ({ type: 'array', items: { type: 'integer' }, contains: { type: 'integer', minimum: 10 }, maxItems: 5 }),
    () => ({
      type: 'object',
      properties: { a: {}, b: { type: 'string' }, c: { type: 'integer' } },
      dependentRequired: { a: ['b'] },
    }),
    () => ({
      type: 'object',
      propertyNames: { pattern: '^[a-z]{1,8}$' },
      additionalProperties: scalar(random),
      maxProperties: 4,
    }),
    () => ({
      type: 'object',
      patternProperties: { '^S_': { type: 'string' }, '^I_': { type: 'integer' } },
      additionalProperties: false,
    }),
    () => ({ allOf: [inner, object(random, 1, {})] }),
    () => ({
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'string' } },
      oneOf: [{ required: ['a'] }, { required: ['b'] }],
    }),
    () => ({ type: 'object', properties: { a: {} }, if: { required: ['a'] }, then: { maxProperties: 1 } }),
    () => ({ not: { type: 'string' } }),
    () => ({ enum: [1, 5, 10, 'x'], not: { minimum: 5, type: 'number' } }),
    () => ({ type: 'string', minLength: 3, pattern: '^[a-z]*-[a-z]*$', maxLength: 12 }),
    () => ({ type: 'string', allOf: [{ pattern: '^[a-f]+$' }, { pattern: 'abc' }] }),
    () => ({ type: 'array', prefixItems: [scalar(random), scalar(random)], items: scalar(random), maxItems: 4 }),
    () => ({ type: 'number', multipleOf: 0.01 }),
    () => ({
      properties: { a: { type: 'integer' } },
      required: ['a'],
      anyOf: [{ properties: { b: { type: 'null' } }, required: ['b'] }, { required: ['a'] }],
    }),
    () => ({ type: 'object' }),
    () => ({ type: 'string', format: 'email', maxLength: 80 }),
    () => ({ type: 'object', properties: { ab: scalar(random), abc: scalar(random) }, additionalProperties: true }),
  ])();
}
