/**
 * Arrays: items by position, counts, `contains`, and `uniqueItems` of a few values. After `prefixItems` an array ends, unless `items` says what
 * follows.
 */
import { COMMA, literalJson, itemsThen } from '../any_json.ts';
import { choice, type Expression, NEVER, repeat, sequence, text } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { SchemaError } from './converted_schema.ts';
import { type Facts, inPlaceOf, largest, pointerOf, smallest } from './facts.ts';
import { isSchema, type Located, pointerTo } from './schema_source.ts';
import { isAnything, isNothing } from './trivial_schemas.ts';
import { listedValues } from './values.ts';

/** Items that are counted (P1). */
const MAX_ITEMS = 10_000;
/** Values of which each may be once (P1): a rule for each subset. */
const MAX_UNIQUE = 8;
/** Items with `contains` that are counted (P1). */
const MAX_WITH_CONTAINS = 32;

const END = text(']');

/** Returns the arrays that satisfy the facts. */
export function arrayExpression(facts: Facts, conversion: Conversion): Expression {
  const [min, most] = countBounds(facts);
  if (most !== undefined && most < min) return NEVER;
  const { isExtended, ...items } = itemsOf(facts, min, conversion);
  const max = isExtended ? min : most;
  const content = ((): Expression => {
    if (isUnique(facts) && (max ?? 2) > 1) return uniqueItems(facts, items, min, max, conversion);
    const contains = containsOf(facts);
    if (contains) return containing(facts, items, contains, min, max, conversion);
    return plainItems(items, min, max, conversion);
  })();
  return sequence(text('['), content);
}

function countBounds(facts: Facts): [min: number, max: number | undefined] {
  const [min, max] = [largest(facts, 'minItems') ?? 0, smallest(facts, 'maxItems')];
  for (const [keyword, count] of [
    ['minItems', min],
    ['maxItems', max ?? 0],
  ] as const)
    if (count > MAX_ITEMS)
      throw new SchemaError(
        pointerOf(facts, keyword),
        `${keyword} ${count} is too large to enforce: at most ${MAX_ITEMS}, or leave it out`,
      );
  return [min, max];
}

/** The schemas of each position. */
interface Items {
  readonly prefix: readonly (readonly Located[])[];
  /** After the prefix; undefined: nothing. */
  readonly rest: readonly Located[] | undefined;
}

/** The schemas of each position, as one schema says them. */
interface OwnItems extends Items {
  /** Whether nothing is said of what comes after the prefix. */
  readonly isUnsaid: boolean;
  /** With unevaluatedItems as `rest`: whether that says nothing of the items of another schema, by its pointer. Undefined: `rest` holds for all. */
  readonly knows: ((pointer: string) => boolean) | undefined;
  readonly pointer: string;
}

/** The positions of all schemas. `isExtended`: items follow of which nothing is said, because `min` of them must be there. */
function itemsOf(facts: Facts, min: number, conversion: Conversion): Items & { readonly isExtended: boolean } {
  const sources = facts.schemas.map((located) => itemsIn(located, conversion)).filter((one) => one !== undefined);
  const length = Math.max(0, ...sources.map(({ prefix }) => prefix.length));
  const isExtending = ({ isUnsaid, prefix }: OwnItems): boolean => isUnsaid && min > prefix.length;
  const isKnown = (i: number, { knows, pointer }: OwnItems): boolean =>
    knows !== undefined &&
    sources.some(
      (other) => other.pointer !== pointer && knows(other.pointer) && (i < other.prefix.length || saysRest(other)),
    );
  const at = (i: number): Located[] | undefined => {
    const parts = sources.map((one) => {
      if (i < one.prefix.length) return one.prefix[i];
      return isKnown(i, one) || isExtending(one) ? [] : one.rest;
    });
    return parts.some((part) => part === undefined) ? undefined : parts.flatMap((part) => part ?? []);
  };
  const prefix: Located[][] = [];
  for (let i = 0; i < length; i++) {
    const parts = at(i);
    if (!parts) break;
    prefix.push(parts);
  }
  return { prefix, rest: prefix.length < length ? undefined : at(length), isExtended: sources.some(isExtending) };
}

function saysRest({ isUnsaid, knows }: OwnItems): boolean {
  return !isUnsaid && knows === undefined;
}

function itemsIn(located: Located, conversion: Conversion): OwnItems | undefined {
  const { schema, pointer } = located;
  if (typeof schema === 'boolean') return undefined;
  const { prefixItems, items, additionalItems, unevaluatedItems } = schema;
  const list = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : undefined;
  const keyword = Array.isArray(prefixItems) ? 'prefixItems' : 'items';
  const [rest, restKeyword] = list && list === items ? [additionalItems, 'additionalItems'] : [items, 'items'];
  const [after, afterKeyword] = rest === undefined ? [unevaluatedItems, 'unevaluatedItems'] : [rest, restKeyword];
  if (!list && after === undefined) return undefined;
  const prefix = (list ?? []).map((part: unknown, i): Located[] =>
    isSchema(part) ? [{ schema: part, pointer: pointerTo(pointer, keyword, i) }] : [],
  );
  const isLast = after === undefined || isNothing(after);
  const isOther = afterKeyword === 'unevaluatedItems' && after !== undefined && !isAnything(after);
  return {
    prefix,
    pointer,
    isUnsaid: after === undefined,
    rest: isLast ? undefined : isSchema(after) ? [{ schema: after, pointer: pointerTo(pointer, afterKeyword) }] : [],
    knows: isOther ? inPlaceOf(located, conversion.source) : undefined,
  };
}

function plainItems({ prefix, rest }: Items, min: number, max: number | undefined, conversion: Conversion): Expression {
  const values = prefix.slice(0, max).map((parts) => conversion.value(parts));
  const after = rest && conversion.value(rest);
  if (values.length < min && !after) return NEVER;
  const left = max === undefined ? undefined : max - values.length;
  let content = after ? itemsThen(END, after, Math.max(0, min - values.length), left, values.length === 0) : END;
  for (const [i, value] of [...values.entries()].reverse()) {
    const item = i === 0 ? sequence(value, content) : sequence(COMMA, value, content);
    content = i < min ? item : choice(END, item);
  }
  return content;
}

function isUnique(facts: Facts): boolean {
  return (facts.keywords.get('uniqueItems') ?? []).some(({ value }) => value === true);
}

/** Items of few values, each at most once: a rule for each set of values that are left. */
function uniqueItems(
  facts: Facts,
  { prefix, rest }: Items,
  min: number,
  max: number | undefined,
  conversion: Conversion,
): Expression {
  if (prefix.length + (rest ? 2 : 0) < 2 && !containsOf(facts))
    return plainItems({ prefix, rest }, min, max, conversion);
  const pointer = pointerOf(facts, 'uniqueItems');
  const values = prefix.length === 0 && rest ? listedValues(conversion.facts(rest), conversion) : undefined;
  if (!values || values.length > MAX_UNIQUE || containsOf(facts))
    throw new SchemaError(
      pointer,
      `uniqueItems cannot be enforced: only for items of an enum with at most ${MAX_UNIQUE} values. Leave it out, and remove duplicates`,
    );
  const texts = values.map(literalJson);
  const key = JSON.stringify(['unique', values, min, max]);
  const after = (used: number, count: number): Expression =>
    conversion.rule(`${key} without ${used}`, () => {
      const next = texts.flatMap((value, i) =>
        (used & (1 << i)) !== 0
          ? []
          : [sequence(count === 0 ? value : sequence(COMMA, value), after(used | (1 << i), count + 1))],
      );
      return choice(count >= min ? END : NEVER, ...(count < (max ?? Infinity) ? next : []));
    });
  return after(0, 0);
}

/** The schema of `contains`; undefined where none must be there. */
function containsOf(facts: Facts): Located | undefined {
  const [found, second] = facts.keywords.get('contains') ?? [];
  if (!found || !isSchema(found.value) || smallest(facts, 'minContains') === 0) return undefined;
  if (second) throw new SchemaError(second.pointer, 'two contains for one array cannot be enforced: keep one');
  return { schema: found.value, pointer: found.pointer };
}

/** One item satisfies `contains`, and others come before and after it. */
function containing(
  facts: Facts,
  { prefix, rest }: Items,
  contains: Located,
  min: number,
  max: number | undefined,
  conversion: Conversion,
): Expression {
  const isMany = (largest(facts, 'minContains') ?? 1) > 1 || facts.keywords.has('maxContains');
  if (prefix.length > 0 || isMany || (max ?? min) > MAX_WITH_CONTAINS)
    throw new SchemaError(
      contains.pointer,
      `contains can be enforced once, without prefixItems, and with at most ${MAX_WITH_CONTAINS} items`,
    );
  if (max === 0 || !rest) return NEVER;
  const item = conversion.value(rest);
  const found = conversion.value([...rest, contains]);
  const [before, after] = [sequence(item, COMMA), sequence(COMMA, item)];
  /** How many items come before the one. */
  const alternatives = Array.from({ length: max ?? Math.max(1, min) }, (_, i) => {
    const isLast = max === undefined && i === Math.max(0, min - 1);
    const least = Math.max(0, min - 1 - i);
    return sequence(
      repeat(before, i, isLast ? undefined : i),
      found,
      repeat(after, least, max === undefined ? undefined : max - 1 - i),
      END,
    );
  });
  return choice(...alternatives);
}
