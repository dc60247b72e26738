/** Schemas that every value satisfies, or none, as `{}`, `{"not": {}}` and the booleans say it. */
import { treatmentOf } from './keywords.ts';
import type { SchemaObject } from './schema_source.ts';

/** Whether no value satisfies a schema, by what it says itself. */
export function isNothing(schema: unknown): boolean {
  return typeof schema === 'object' && schema !== null ? 'not' in schema && isAnything(schema.not) : schema === false;
}

/** Whether every value satisfies a schema, by what it says itself. */
export function isAnything(schema: unknown): boolean {
  if (typeof schema !== 'object' || schema === null) return schema === true;
  return Object.entries(schema as SchemaObject).every(([keyword, value]) =>
    keyword === 'not' ? isNothing(value) : isSilent(keyword),
  );
}

/** Keywords that only hold or name other schemas. */
const NAMING: ReadonlySet<string> = new Set(['$defs', 'definitions', '$id', '$anchor']);

/** Whether a keyword says nothing of the value. */
export function isSilent(keyword: string): boolean {
  return NAMING.has(keyword) || (treatmentOf(keyword)?.kind ?? 'annotation') === 'annotation';
}
