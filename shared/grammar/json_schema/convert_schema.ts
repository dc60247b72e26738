/**
 * Converts a JSON schema (2020-12, draft 7, OpenAPI's `nullable`) to a grammar, such that every text of the grammar is valid. What cannot be
 * enforced is refused by its pointer; `keywords.ts` has the table.
 *
 *     schema ─► schema_source (meta-schema, references) ─► facts (all keywords of one value, merged)
 *                 ─► values | alternatives | objects, arrays, strings, numbers ─► rules ─► pruned grammar
 */
import { ANY_ARRAY, ANY_OBJECT, ANY_VALUE, anyJsonRules, literalJson } from '../any_json.ts';
import { choice, choiceOf, type Expression, type Grammar, NEVER, ruleNamed, text } from '../grammar.ts';
import { pruned } from '../prune_grammar.ts';
import { alternativesExpression } from './alternatives.ts';
import { arrayExpression } from './arrays.ts';
import type { Conversion } from './conversion.ts';
import { type ConvertedSchema, SchemaError } from './converted_schema.ts';
import { type Facts, factsOf } from './facts.ts';
import type { JsonType } from './keywords.ts';
import { numberExpression } from './numbers.ts';
import { objectExpression } from './objects.ts';
import { isRequiredOnly } from './presence_rules.ts';
import { type Located, SchemaSource, WITHOUT } from './schema_source.ts';
import { located, stringExpression } from './strings.ts';
import { listedValues } from './values.ts';

const ROOT = 'root';
/** Rules of a schema (P1). */
const MAX_RULES = 40_000;
/** Pointers of ignored keywords that are listed (P1). */
const MAX_IGNORED = 100;

/** Returns the grammar of the JSON texts that are written for a schema. @throws SchemaError with a pointer, or GrammarError */
export function convertSchema(schema: unknown): ConvertedSchema {
  const converter = new Converter(new SchemaSource(schema));
  const grammar = pruned(converter.convert());
  if (!grammar) throw new SchemaError('', 'no value can satisfy the schema');
  return { grammar, ignored: converter.ignored };
}

class Converter implements Conversion {
  readonly source: SchemaSource;
  readonly #rules = new Map<string, Expression>(anyJsonRules);
  readonly #ignored = new Set<string>();
  /** Rules that are named and not made yet. Making them one after the other keeps deep schemas off the stack. */
  readonly #open: { readonly name: string; readonly make: () => Expression }[] = [];

  constructor(source: SchemaSource) {
    this.source = source;
  }

  get ignored(): readonly string[] {
    return [...this.#ignored];
  }

  convert(): Grammar {
    const root = this.value([{ schema: this.source.root, pointer: '' }]);
    for (let next = this.#open.pop(); next; next = this.#open.pop()) this.#rules.set(next.name, next.make());
    return { root: ROOT, rules: new Map([...this.#rules, [ROOT, root]]) };
  }

  value(parts: readonly Located[]): Expression {
    const named = parts.filter(({ schema }) => schema !== true);
    if (named.length === 0) return ruleNamed(ANY_VALUE);
    const pointers = [...new Set(named.map(({ pointer }) => pointer))].sort();
    const key = `value at ${JSON.stringify(pointers)}`;
    return this.rule(key, () => this.#located(pointers[0] ?? '', () => this.#valueOf(this.facts(named), key)));
  }

  /** Returns what `make` gives; errors of grammars get the pointer. */
  #located(pointer: string, make: () => Expression): Expression {
    try {
      return make();
    } catch (error) {
      throw located(error, pointer);
    }
  }

  rule(key: string, make: () => Expression): Expression {
    if (!this.#rules.has(key)) {
      if (this.#rules.size >= MAX_RULES)
        throw new SchemaError('', `the schema needs more than ${MAX_RULES} rules: make it smaller`);
      this.#rules.set(key, NEVER);
      this.#open.push({ name: key, make });
    }
    return ruleNamed(key);
  }

  facts(parts: readonly Located[]): Facts {
    return factsOf(parts, this.source, (pointer) => this.ignore(pointer));
  }

  ignore(pointer: string): void {
    if (this.#ignored.size < MAX_IGNORED) this.#ignored.add(pointer.replaceAll(WITHOUT, ''));
  }

  #valueOf(facts: Facts, key: string): Expression {
    if (facts.isNever) return NEVER;
    const hasList = facts.keywords.has('enum') || facts.keywords.has('const');
    const values = hasList ? listedValues(facts, this) : undefined;
    if (values) return choiceOf(values.map(literalJson));
    const [refused] = facts.refused;
    if (refused) throw new SchemaError(refused.pointer, `${refused.keyword} cannot be enforced: ${refused.remedy}`);
    const disjunctions = facts.disjunctions.filter((one) => !isRequiredOnly(one));
    if (disjunctions.length > 0) return alternativesExpression(facts, disjunctions, this);
    return choice(...[...facts.types].map((type) => this.#ofType(type, facts, key)));
  }

  #ofType(type: JsonType, facts: Facts, key: string): Expression {
    switch (type) {
      case 'object':
        return this.#isPlain(facts) ? ruleNamed(ANY_OBJECT) : objectExpression(facts, this, key);
      case 'array':
        return this.#isPlain(facts) ? ruleNamed(ANY_ARRAY) : arrayExpression(facts, this);
      case 'string':
        return stringExpression(facts, this);
      case 'integer':
        return numberExpression(facts, true, this);
      case 'number':
        return numberExpression(facts, false, this);
      case 'boolean':
        return choice(text('true'), text('false'));
      case 'null':
        return text('null');
    }
  }

  /** Whether nothing but a type is said. */
  #isPlain(facts: Facts): boolean {
    return [...facts.keywords.keys()].every((keyword) => PLAIN.has(keyword));
  }
}

/** Keywords that say nothing next to `type`. */
const PLAIN: ReadonlySet<string> = new Set([
  'type',
  'nullable',
  '$defs',
  'definitions',
  '$id',
  '$anchor',
  '$ref',
  'allOf',
]);
