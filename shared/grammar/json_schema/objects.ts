/**
 * Objects: declared properties in the order of the schema, others after them. A rule per property and per whether something stands before it
 * keeps the grammar linear in the number of properties; counts of properties are part of the rule only where a bound needs them.
 */
import { ANY_STRING, COLON, COMMA, ANY_OBJECT, itemsThen, literalJson } from '../any_json.ts';
import { choice, type Expression, NEVER, ruleNamed, sequence, text } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Facts, largest, pointerOf, smallest } from './facts.ts';
import { type Presence, presenceOf } from './presence.ts';
import { exclusiveLists } from './presence_rules.ts';
import { type Properties, propertiesOf } from './properties.ts';

/** Rules of one object with counts (P1). */
const MAX_COUNTED = 20_000;

const END = text('}');

/** Returns the objects that satisfy the facts. `key` names them. */
export function objectExpression(facts: Facts, conversion: Conversion, key: string): Expression {
  const properties = propertiesOf(facts, conversion);
  const [min, max] = [largest(facts, 'minProperties') ?? 0, smallest(facts, 'maxProperties')];
  if (isAnyObject(properties, facts) && min === 0 && max === undefined) return ruleNamed(ANY_OBJECT);
  const variants = presenceOf(facts, properties);
  return choice(
    ...variants.map((presence, i) => {
      const builder = new ObjectBuilder(properties, presence, facts, conversion, `${key} variant ${i}`);
      return sequence(text('{'), builder.from(0, 0));
    }),
  );
}

function isAnyObject({ declared, required, others }: Properties, facts: Facts): boolean {
  if (exclusiveLists(facts).length > 0) return false;
  const isPlain = !['propertyNames', 'dependentRequired', 'dependencies'].some((keyword) =>
    facts.keywords.has(keyword),
  );
  const [only] = others;
  // Keys that may not be there are no longer declared; they are missing among the others.
  const isOpen = others.length === 1 && only?.key === ANY_STRING && only.parts.every(({ schema }) => schema === true);
  return isPlain && declared.length === 0 && required.size === 0 && isOpen && !facts.keywords.has('patternProperties');
}

/** Builds one object's rules. */
class ObjectBuilder {
  readonly #properties: Properties['declared'];
  readonly #required: ReadonlySet<string>;
  readonly #others: Expression;
  readonly #conversion: Conversion;
  readonly #key: string;
  readonly #min: number;
  readonly #max: number | undefined;
  /** Counts are only kept up to here: more of them make no difference. */
  readonly #counted: number;

  constructor(
    { declared, required, others }: Properties,
    { present, absent }: Presence,
    facts: Facts,
    conversion: Conversion,
    key: string,
  ) {
    this.#properties = declared.filter(({ name }) => !absent.has(name));
    this.#required = new Set([...required, ...present]);
    this.#conversion = conversion;
    this.#key = key;
    // A rule of its own, because it stands in several places.
    this.#others = choice(
      ...others.map((kind, i) =>
        conversion.rule(`${key} kind ${i} of other keys`, () =>
          sequence(kind.key, COLON, conversion.value(kind.parts)),
        ),
      ),
    );
    const isClosed = others.length === 0;
    const [min, max] = [largest(facts, 'minProperties') ?? 0, smallest(facts, 'maxProperties')];
    const numRequired = this.#required.size;
    this.#min = min <= numRequired ? 0 : min;
    this.#max = max !== undefined && isClosed && max >= this.#properties.length ? undefined : max;
    this.#counted = this.#max ?? this.#min;
    if (!isClosed && this.#min - numRequired > 1)
      throw new SchemaError(
        pointerOf(facts, 'minProperties'),
        `minProperties ${min} cannot be enforced with keys that the schema does not name: name them in required`,
      );
    if (this.#counted * this.#properties.length > MAX_COUNTED || this.#counted > MAX_COUNTED)
      throw new SchemaError(
        pointerOf(facts, 'maxProperties', 'minProperties'),
        'minProperties and maxProperties are too large to enforce for so many properties: leave them out',
      );
  }

  /** Returns what follows once the properties before `index` have been decided, and `count` of them written (if not counted: 0 or 1). */
  from(index: number, count: number): Expression {
    return this.#conversion.rule(`${this.#key} from ${index} after ${count}`, () => this.#rest(index, count));
  }

  #rest(index: number, count: number): Expression {
    const property = this.#properties[index];
    if (!property) return this.#end(count);
    const isFull = this.#max !== undefined && count >= this.#max;
    const { name, parts } = property;
    const pair = (): Expression => {
      const first = [literalJson(name), COLON, this.#conversion.value(parts), this.from(index + 1, this.#next(count))];
      return count === 0 ? sequence(...first) : sequence(COMMA, ...first);
    };
    const written = isFull ? NEVER : pair();
    return this.#required.has(name) ? written : choice(written, this.from(index + 1, count));
  }

  #next(count: number): number {
    return Math.min(count + 1, Math.max(1, this.#counted));
  }

  /** Keys that are not declared, and the end. */
  #end(count: number): Expression {
    const missing = [...this.#required].some((name) => !this.#properties.some((property) => property.name === name));
    if (missing) return NEVER;
    const min = Math.max(0, this.#min - count);
    const max = this.#max === undefined ? undefined : this.#max - count;
    if (max !== undefined && max < min) return NEVER;
    return itemsThen(END, this.#others, min, max, count === 0);
  }
}
