/** The parts of a conversion share this: rules, the merging of schemas, and refusals. */
import type { Expression } from '../grammar.ts';
import type { Facts } from './facts.ts';
import type { Located, SchemaSource } from './schema_source.ts';

/** A schema on its way to a grammar. */
export interface Conversion {
  readonly source: SchemaSource;
  /** Returns a reference to the rule of the values that satisfy all parts. The rule is made later. */
  value(parts: readonly Located[]): Expression;
  /** Returns a reference to the rule of this key, which `make` gives when it is new. */
  rule(key: string, make: () => Expression): Expression;
  /** Merges schemas. */
  facts(parts: readonly Located[]): Facts;
  /** Lists a keyword that restricts nothing here. */
  ignore(pointer: string): void;
}
