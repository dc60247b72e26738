/** JSON schemas as text. */
import { GrammarError } from '../../grammar/grammar.ts';

/** Returns the schema that a text is. @throws GrammarError when it is no JSON */
export function parseSchema(schema: string): unknown {
  try {
    return JSON.parse(schema);
  } catch (error) {
    throw new GrammarError(`the schema is no JSON: ${error instanceof Error ? error.message : ''}`, { cause: error });
  }
}
