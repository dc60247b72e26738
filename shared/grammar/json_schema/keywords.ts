/**
 * The treatment of every keyword of JSON Schema (2020-12, draft 7, OpenAPI). One that is not in the table is an annotation, as the standard
 * says, and is listed as ignored.
 */

/** The JSON types that a schema can name. */
export type JsonType = 'string' | 'number' | 'integer' | 'boolean' | 'null' | 'object' | 'array';

/** The treatment of a keyword. */
export type Treatment =
  /** The grammar holds it. `of`: values that it speaks of, which a schema without `type` then means. */
  | { readonly kind: 'enforced'; readonly of?: JsonType }
  /** It restricts nothing. */
  | { readonly kind: 'annotation' }
  /** The schema is refused, unless only listed values are left, which are tried one by one. */
  | { readonly kind: 'refused'; readonly remedy: string };

const enforced: Treatment = { kind: 'enforced' };
const annotation: Treatment = { kind: 'annotation' };
const of = (type: JsonType): Treatment => ({ kind: 'enforced', of: type });
const refused = (remedy: string): Treatment => ({ kind: 'refused', remedy });

const table: Readonly<Record<string, Treatment>> = {
  type: enforced,
  enum: enforced,
  const: enforced,
  nullable: enforced,
  $ref: enforced,
  allOf: enforced,
  anyOf: enforced,
  oneOf: enforced,
  $defs: enforced,
  definitions: enforced,
  $id: enforced,
  id: annotation,
  $anchor: enforced,
  minLength: of('string'),
  maxLength: of('string'),
  pattern: of('string'),
  format: enforced,
  minimum: of('number'),
  maximum: of('number'),
  multipleOf: of('number'),
  exclusiveMinimum: of('number'),
  exclusiveMaximum: of('number'),
  properties: of('object'),
  required: of('object'),
  additionalProperties: of('object'),
  patternProperties: of('object'),
  propertyNames: of('object'),
  unevaluatedProperties: of('object'),
  minProperties: of('object'),
  maxProperties: of('object'),
  dependentRequired: of('object'),
  dependencies: of('object'),
  items: of('array'),
  prefixItems: of('array'),
  additionalItems: of('array'),
  unevaluatedItems: of('array'),
  minItems: of('array'),
  maxItems: of('array'),
  uniqueItems: of('array'),
  contains: of('array'),
  minContains: of('array'),
  maxContains: of('array'),
  title: annotation,
  description: annotation,
  default: annotation,
  examples: annotation,
  example: annotation,
  deprecated: annotation,
  readOnly: annotation,
  writeOnly: annotation,
  $comment: annotation,
  $schema: annotation,
  $vocabulary: annotation,
  contentMediaType: annotation,
  contentEncoding: annotation,
  contentSchema: annotation,
  discriminator: annotation,
  externalDocs: annotation,
  xml: annotation,
  not: refused('say what the value is: by enum, pattern, or anyOf'),
  if: refused('use anyOf with one alternative for each case'),
  dependentSchemas: refused('use anyOf with one alternative for each case'),
  $dynamicRef: refused('use $ref'),
  $recursiveRef: refused('use $ref'),
};

/** Keywords without a meaning of their own. */
const companions: ReadonlySet<string> = new Set(['then', 'else', '$dynamicAnchor', '$recursiveAnchor']);

/** Returns the treatment of a keyword; undefined for one that is not known. */
export function treatmentOf(keyword: string): Treatment | undefined {
  if (companions.has(keyword)) return annotation;
  return Object.hasOwn(table, keyword) ? table[keyword] : undefined;
}
