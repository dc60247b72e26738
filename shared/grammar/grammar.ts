/**
 * Context-free grammars over Unicode text: a tree of expressions per rule. Regular expressions, other people's grammars and JSON schemas are
 * converted to these, and `ebnf.ts` prints them for the library that makes masks. Builders simplify: no sequence or choice holds another
 * of its kind, texts that follow one another are one, and what can match nothing disappears with all that needs it.
 */
import { Failure } from '../base/failure.ts';
import { type CodePoints, sizeOf } from './code_points.ts';

/** An expression matches a set of texts. */
export type Expression =
  /** Exactly this text, which may be empty. It is well formed: without lone surrogates. */
  | { readonly kind: 'text'; readonly text: string }
  /** One special token of the model, by its name. No text matches it, not even its name written out. */
  | { readonly kind: 'special'; readonly name: string }
  /** One character of the set, which is not empty. */
  | { readonly kind: 'set'; readonly set: CodePoints }
  /** All items, one after the other. */
  | { readonly kind: 'sequence'; readonly items: readonly Expression[] }
  /** Any of the items; without items: no text at all. */
  | { readonly kind: 'choice'; readonly items: readonly Expression[] }
  /** The item at least `min` and at most `max` times; `max` undefined: without a limit. */
  | {
      readonly kind: 'repeat';
      readonly item: Expression;
      readonly min: number;
      readonly max: number | undefined;
    }
  /** The texts that the named rule matches. */
  | { readonly kind: 'rule'; readonly name: string };

/** Rules by name, and the name of the one that matches whole texts. */
export interface Grammar {
  readonly root: string;
  readonly rules: ReadonlyMap<string, Expression>;
}

/** A constraint that is no grammar, or one beyond a bound. The message says where and what to do. */
export class GrammarError extends Failure {
  constructor(message: string, options?: ErrorOptions) {
    super('invalid_request', message, options);
    this.name = 'GrammarError';
  }
}

/** Matches the empty text only. */
export const EMPTY: Expression = { kind: 'text', text: '' };
/** Matches no text. */
export const NEVER: Expression = { kind: 'choice', items: [] };

/** Whether the expression is {@link NEVER}. */
export function isNever(expression: Expression): boolean {
  return expression.kind === 'choice' && expression.items.length === 0;
}

/** Whether the expression is {@link EMPTY}. */
export function isEmpty(expression: Expression): boolean {
  return expression.kind === 'text' && expression.text === '';
}

/** Returns the expression of exactly this text. @throws GrammarError when UTF-8 cannot express it */
export function text(value: string): Expression {
  if (/[\ud800-\udfff]/u.test(value))
    throw new GrammarError('a text has half a surrogate pair, which UTF-8 cannot express');
  return { kind: 'text', text: value };
}

/** Returns the expression of one special token of the model. */
export function specialToken(name: string): Expression {
  return { kind: 'special', name };
}

/** Returns the expression of one character of the set. */
export function oneOf(set: CodePoints): Expression {
  const [only] = set;
  if (!only) return NEVER;
  return sizeOf(set) === 1 ? text(String.fromCodePoint(only[0])) : { kind: 'set', set };
}

/** Returns a reference to a rule. */
export function ruleNamed(name: string): Expression {
  return { kind: 'rule', name };
}

/** Returns the expression of the items one after the other. */
export function sequence(...items: readonly Expression[]): Expression {
  return sequenceOf(items);
}

/** Returns the expression of a list's items one after the other, however many there are. */
export function sequenceOf(items: readonly Expression[]): Expression {
  const flat: Expression[] = [];
  for (const item of items) {
    if (isNever(item)) return NEVER;
    for (const part of item.kind === 'sequence' ? item.items : [item]) append(flat, part);
  }
  const [only = EMPTY] = flat;
  return flat.length < 2 ? only : { kind: 'sequence', items: flat };
}

function append(flat: Expression[], item: Expression): void {
  const last = flat.at(-1);
  if (isEmpty(item)) return;
  if (last?.kind === 'text' && item.kind === 'text') flat[flat.length - 1] = text(last.text + item.text);
  else flat.push(item);
}

/** Returns the expression of any of the items. Each text, set and rule is kept once. */
export function choice(...items: readonly Expression[]): Expression {
  return choiceOf(items);
}

/** Returns the expression of any item of a list, however many there are. */
export function choiceOf(items: readonly Expression[]): Expression {
  const flat: Expression[] = [];
  const seen = new Set<string>();
  for (const item of items) {
    for (const part of item.kind === 'choice' ? item.items : [item]) {
      const key = part.kind === 'text' ? `t${part.text}` : part.kind === 'rule' ? `r${part.name}` : undefined;
      if (key !== undefined && seen.has(key)) continue;
      if (key !== undefined) seen.add(key);
      flat.push(part);
    }
  }
  const [only = NEVER] = flat;
  return flat.length < 2 ? only : { kind: 'choice', items: flat };
}

/** Returns the expression of `min` to `max` times the item; `max` undefined: without a limit. */
export function repeat(item: Expression, min: number, max?: number): Expression {
  if (isEmpty(item) || max === 0) return EMPTY;
  if (isNever(item)) return min === 0 ? EMPTY : NEVER;
  if (min === 1 && max === 1) return item;
  // (x*)* is x*.
  if (item.kind === 'repeat' && item.max === undefined && item.min <= 1 && max === undefined && min <= 1)
    return { ...item, min: Math.min(min, item.min) };
  return { kind: 'repeat', item, min, max };
}

/** Returns the expression of the item or nothing. */
export function optional(item: Expression): Expression {
  return repeat(item, 0, 1);
}

/** Returns the expressions directly in this one. */
export function partsOf(expression: Expression): readonly Expression[] {
  switch (expression.kind) {
    case 'sequence':
    case 'choice':
      return expression.items;
    case 'repeat':
      return [expression.item];
    case 'text':
    case 'special':
    case 'set':
    case 'rule':
      return [];
  }
}

/** Returns the names of the rules that an expression refers to. */
export function rulesIn(body: Expression): Set<string> {
  const names = new Set<string>();
  const open = [body];
  for (let next = open.pop(); next; next = open.pop()) {
    if (next.kind === 'rule') names.add(next.name);
    for (const part of partsOf(next)) open.push(part);
  }
  return names;
}
