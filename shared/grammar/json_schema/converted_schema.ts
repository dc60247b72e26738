/** The result of converting a JSON schema, and the error of one that cannot be enforced. */
import { type Grammar, GrammarError } from '../grammar.ts';

/** A schema as a grammar. Each JSON text of the grammar is valid. */
export interface ConvertedSchema {
  readonly grammar: Grammar;
  /** JSON pointers of keywords that restrict nothing in the grammar, such as a `format` that is not known. Annotations are not among them. */
  readonly ignored: readonly string[];
}

/** A schema that is invalid, or one with a keyword that cannot be enforced. */
export class SchemaError extends GrammarError {
  /** JSON pointer into the schema. */
  readonly pointer: string;

  constructor(pointer: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'SchemaError';
    this.pointer = pointer;
  }
}
