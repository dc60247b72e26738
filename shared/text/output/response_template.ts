/**
 * A checkpoint's own output format: the `response_template` of tokenizer_config.json, as transformers 5 reads it. A template has fields
 * (`content`, `thinking`, `tool_calls`), each with what opens and closes its region and how its text is parsed. It becomes a table of
 * states, as the families have one.
 */
import { z } from 'zod';
import { isToolName } from './call_writer.ts';
import { contentParser, transformed, type ContentParser } from './response_content.ts';
import { outputTable, type OutputTable, type ParseBody, type PatternTerminal, type StateSpec } from './output_table.ts';

/** Longest end of a prompt that is looked at, in UTF-16 units (P1). */
const MAX_PREFIX = 1 << 16;

const literals = z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]).optional();

const fieldSchema = z.looseObject({
  open: literals,
  open_pattern: z.string().optional(),
  close: literals,
  close_pattern: z.string().optional(),
  content: z.string().default('text'),
  content_args: z.record(z.string(), z.unknown()).default({}),
  transform: z.unknown().optional(),
  transform_each: z.boolean().default(false),
});

const templateSchema = z.looseObject({
  version: z.literal(1).optional(),
  fields: z.record(z.string(), fieldSchema),
  start_anchor: literals,
  start_anchor_pattern: z.string().optional(),
});

type Field = z.infer<typeof fieldSchema>;

const REASONING = ['thinking', 'reasoning', 'reasoning_content'];
const CALLS = 'tool_calls';

/** A response template as a table, and the part of a prompt that belongs to the answer. */
export interface ResponseTemplate {
  /** @param hasTools whether calls are parsed; without, their text is content */
  table(hasTools: boolean): OutputTable;
  /** Returns the text of a prompt after the last beginning of an answer. */
  readonly prefix: (prompt: string) => string;
  readonly hasReasoning: boolean;
}

/** Reads a response template. @throws Error when it is none, or has what is not supported */
export function responseTemplate(source: unknown): ResponseTemplate {
  const parsed = templateSchema.safeParse(source);
  if (!parsed.success) throw new Error(`response_template: ${z.prettifyError(parsed.error)}`);
  const { fields, start_anchor: anchor, start_anchor_pattern: anchorPattern } = parsed.data;
  const anchors = anchorPattern === undefined ? alternatives(anchor) : portable(anchorPattern, 'g');
  const make = (hasTools: boolean): OutputTable => tableOf(fields, hasTools);
  make(true);
  return {
    table: make,
    prefix: (prompt) => {
      const last = anchors ? [...prompt.matchAll(anchors)].at(-1) : undefined;
      return last ? prompt.slice(last.index + last[0].length).slice(-MAX_PREFIX) : '';
    },
    hasReasoning: Object.keys(fields).some((name) => REASONING.includes(name)),
  };
}

function tableOf(fields: Readonly<Record<string, Field>>, hasTools: boolean): OutputTable {
  const on: Record<string, string> = {};
  const patterns: PatternTerminal[] = [];
  const states: Record<string, StateSpec> = {};
  let ends: readonly string[] = [];
  for (const [name, field] of Object.entries(fields)) {
    if (name === CALLS && !hasTools) continue;
    const opens = [field.open ?? []].flat();
    if (opens.length === 0 && field.open_pattern === undefined) {
      if (name !== 'content') throw new Error(`response_template: ${name} has nothing that opens it`);
      ends = [field.close ?? []].flat();
      continue;
    }
    const state = `in_${name}`;
    for (const literal of opens) on[literal] = state;
    if (field.open_pattern !== undefined) {
      const named = name === CALLS && isNamedByPattern(field);
      patterns.push(
        patternTerminal(field.open_pattern, (_, groups) => ({
          to: state,
          ...(named ? { name: groups['name'] ?? '' } : {}),
        })),
      );
    }
    Object.assign(states, statesOf(name, state, field));
  }
  // The marker that closes the text between the regions belongs to the format.
  for (const literal of ends) on[literal] ??= 'content';
  return outputTable('content', { ...states, content: { text: 'content', on, patterns } });
}

/** Returns the states of one region. */
function statesOf(name: string, state: string, field: Field): Record<string, StateSpec> {
  const closes = [field.close ?? []].flat();
  const closed = {
    on: Object.fromEntries(closes.map((literal) => [literal, 'content'])),
    ...(field.close_pattern === undefined
      ? {}
      : { patterns: [patternTerminal(field.close_pattern, () => ({ to: 'content' }))] }),
  };
  if (REASONING.includes(name)) return { [state]: { text: 'reasoning', ...closed } };
  if (name !== CALLS) return { [state]: { text: 'content', ...closed } };
  const behind: Record<string, StateSpec> = { [`${state}_close`]: { text: 'tail', ...closed } };
  if (isNamedByPattern(field)) return { [state]: { text: 'object', next: `${state}_close` }, ...behind };
  if (isNamedByJson(field)) return { [state]: { text: 'call', next: `${state}_close` }, ...behind };
  return { [state]: { text: 'body', parse: bodyParser(field), ...closed } };
}

/** Whether a field's content is a JSON object with name and arguments, which can be written while it arrives. */
function isNamedByJson({ content, content_args: options, transform, transform_each: isEach }: Field): boolean {
  const shape = JSON.stringify(transform);
  return (
    content === 'json' &&
    Object.keys(options).length === 0 &&
    !isEach &&
    (transform === undefined || shape === '{"type":"function","function":"{content}"}')
  );
}

/** Whether the pattern that opens a field has the name, and the field's content is the arguments as a JSON object. */
function isNamedByPattern({ open_pattern: pattern, content, content_args: options, transform }: Field): boolean {
  return (
    content === 'json' &&
    Object.keys(options).length === 0 &&
    pattern?.includes('(?P<name>') === true &&
    JSON.stringify(transform) === '{"type":"function","function":{"name":"{name}","arguments":"{content}"}}'
  );
}

/** Returns the parser of a region that is read as a whole. */
function bodyParser({ content, content_args: options, transform, transform_each: isEach }: Field): ParseBody {
  const parse: ContentParser = contentParser(content, options);
  return (body, groups) => {
    const value = parse(body);
    if (value === undefined) return undefined;
    const items = isEach ? value : [value];
    if (!Array.isArray(items)) return undefined;
    const calls = items
      .map((item: unknown) => (transform === undefined ? item : transformed(transform, item, groups)))
      .flat()
      .map(callOf);
    return calls.some((call) => call === undefined) ? undefined : calls.flatMap((call) => call ?? []);
  };
}

const callSchema = z.object({ name: z.string().refine(isToolName), arguments: z.record(z.string(), z.unknown()) });

/** Returns name and arguments of a call, which may stand in `function`. */
function callOf(value: unknown): { readonly name: string; readonly json: string } | undefined {
  const { function: called = value } = (typeof value === 'object' && value !== null ? value : {}) as {
    function?: unknown;
  };
  const { data } = callSchema.safeParse(called);
  return data && { name: data.name, json: JSON.stringify(data.arguments) };
}

function alternatives(anchor: string | readonly string[] | undefined): RegExp | undefined {
  const all = [anchor ?? []].flat();
  return all.length === 0 ? undefined : new RegExp(all.map(quoted).join('|'), 'gu');
}

function quoted(literal: string): string {
  return literal.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

/** Returns a regular expression of Python as one of JavaScript. */
function portable(pattern: string, flags: string): RegExp {
  try {
    return new RegExp(pattern.replaceAll('(?P<', '(?<').replaceAll('\\Z', '$'), `su${flags}`);
  } catch (cause) {
    throw new Error(`response_template: the pattern ${pattern} cannot be used`, { cause });
  }
}

/** Characters that are a pattern's own, unless a backslash stands before them. */
const SPECIAL = /[\^$.*+?()[\]{}|\\]/;

/**
 * Makes a terminal of a pattern. White space that it begins with is left to the text before it. @throws Error when the pattern does not
 * begin with literal text, without which it would be tried at every character.
 */
function patternTerminal(source: string, to: PatternTerminal['to']): PatternTerminal {
  const pattern = source.replace(/^(\\s[*+]?|\\n[*+?]?)+/, '');
  let prefix = '';
  for (let at = 0; at < pattern.length; at++) {
    const isEscaped = pattern.charAt(at) === '\\';
    const char = pattern.charAt(isEscaped ? at + 1 : at);
    if (isEscaped ? /\w/.test(char) : SPECIAL.test(char)) break;
    if (isEscaped) at++;
    // A character that may be missing or repeated is no part of the prefix.
    if (/[*?+{|]/.test(pattern.charAt(at + 1))) break;
    prefix += char;
  }
  if (prefix === '' || /(^|[^\\])\|/.test(pattern.replace(/\([^)]*\)/g, '')))
    throw new Error(`response_template: the pattern ${source} does not begin with literal text`);
  return { prefix, pattern: portable(pattern, 'y'), to };
}
