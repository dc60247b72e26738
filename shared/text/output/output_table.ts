/**
 * Tables of output formats. A table is a set of states. Each state says what its text is, and which terminals (marker strings) lead to
 * which state:
 *
 *   content ──<tool_call>──► call: {"name": …, "arguments": {…}} ──► close ──</tool_call>──► content
 *
 * The state `content` is where a call that turns out to be none returns to: every table has it.
 */
import assert from 'node:assert/strict';
import type { ValueMarks } from './value_reader.ts';

/**
 * Meaning of a state's text:
 *
 * - `content`, `reasoning`: text of the answer
 * - `tail`: after a call; white space is dropped, other text is content
 * - `space`: white space; other text leads to `next`, or shows that this is no call
 * - `dropped`: shown to nobody
 * - `undecided`: content, or reasoning where a terminal closes it
 * - `name`, `key`: parts of a call whose arguments are written one by one
 * - `arguments`: JSON text of a call's arguments, up to a terminal
 * - `word`: text that the next transition looks at
 * - `body`: a whole region, which `parse` turns into calls when it ends
 * - the rest are values that end by themselves, each with a reader of its own; they lead to `next`. `value` is that of a parameter
 */
export type TextKind =
  | ('content' | 'reasoning' | 'tail' | 'space' | 'dropped' | 'undecided')
  | ('name' | 'key' | 'arguments' | 'word' | 'body')
  | ReaderKind;

/** Kinds of values that end by themselves. `known_…` takes only names of the request's tools: such calls have no marker before them. */
type ReaderKind = 'call' | 'known_call' | 'object' | 'python_call' | 'known_python_call' | 'gemma_object' | 'value';

/**
 * State that follows a terminal, chosen by the text before it or by the groups of a pattern. `name` names the call that begins, `id` is the id that
 * the model gave it; `isKnown` tells whether a tool of the request has a name.
 */
export type Choose = (
  word: string,
  groups: Readonly<Record<string, string>>,
  isKnown: (name: string) => boolean,
) => { readonly to: string; readonly name?: string; readonly id?: string } | undefined;

/** Follows a terminal: the next state, and how many of the terminal's last characters are read again there. */
export interface Transition {
  readonly to: string | Choose;
  readonly keep?: number;
  /** Whether a call begins here that reasoning may only mention: what follows tells. */
  readonly isTrial?: boolean;
  /** Whether another call begins here, which ends one before it that was not ended. */
  readonly isCall?: boolean;
  /** Whether it closes reasoning that a call has left. */
  readonly isClosing?: boolean;
}

/** A terminal that is a regular expression. It is tried wherever its literal `prefix` stands. */
export interface PatternTerminal extends Transition {
  readonly prefix: string;
  /** Sticky. The shortest text that it matches is the terminal. */
  readonly pattern: RegExp;
}

/** Calls of a region, with arguments as JSON text; undefined when the region is none. */
export type ParseBody = (
  body: string,
  groups: Readonly<Record<string, string>>,
) => readonly { readonly name: string; readonly json: string }[] | undefined;

/** One state as a table writes it. */
export interface StateSpec {
  readonly text: TextKind;
  readonly on?: Readonly<Record<string, string | Transition>>;
  readonly patterns?: readonly PatternTerminal[];
  readonly next?: string;
  readonly parse?: ParseBody;
  /** Markers of the format around values, where the text is one. */
  readonly marks?: ValueMarks;
  /** Whether the text up to here, and what breaks off here, belongs to the format and can no longer be content. */
  readonly isFormat?: boolean;
  /** Whether text that is held here is dropped where the answer ends. */
  readonly isDroppedAtEnd?: boolean;
}

/** State after a call that began in reasoning that was not closed; a table of a format without reasoning has none. */
export const BEHIND_CALL = 'behind_call';

/** Returns transitions in which each of the literals leads to the same. */
export function toAll<T>(literals: readonly string[], to: T): Record<string, T> {
  return Object.fromEntries(literals.map((literal) => [literal, to]));
}

/** States by name. */
export type States = Readonly<Record<string, StateSpec>>;

/** States of a tool format, without the reasoning before it. */
export interface ToolStates {
  readonly start: string;
  readonly states: States;
  /** Terminals of `content` that begin a call wherever they stand. */
  readonly openers?: readonly string[];
  /** Marker strings that are no terminals. */
  readonly markers?: readonly string[];
}

/** One state, ready to be run. */
export interface State extends Pick<StateSpec, 'text' | 'next' | 'parse' | 'isFormat' | 'isDroppedAtEnd' | 'marks'> {
  readonly terminals: ReadonlyMap<string, Transition | PatternTerminal>;
  /** Beginnings of terminals, without the whole ones. */
  readonly beginnings: ReadonlySet<string>;
  /** Text in which no terminal begins. Sticky. */
  readonly plain: RegExp;
}

/** Table of one output format. */
export interface OutputTable {
  readonly start: string;
  readonly states: ReadonlyMap<string, State>;
  /** Strings of the format that an answer may have as special tokens: they must be visible to the parser. */
  readonly markers: readonly string[];
}

/** Makes a table. `more` are marker strings that are no terminals. @throws Error when a state names one that is not there, or terminals collide */
export function outputTable(start: string, specs: States, more: readonly string[] = []): OutputTable {
  const states = new Map(Object.entries(specs).map(([name, spec]) => [name, stateOf(name, spec)]));
  const targets = [...states.values()].flatMap(({ next, terminals }) => [
    ...(next === undefined ? [] : [next]),
    ...[...terminals.values()].flatMap(({ to }) => (typeof to === 'string' ? [to] : [])),
  ]);
  for (const name of ['content', start, ...targets]) assert(states.has(name), `the table has no state ${name}`);
  const markers = [...states.values()].flatMap(({ terminals, marks }) => [
    ...terminals.keys(),
    ...(marks ? [marks.close, marks.open, marks.end].flat() : []),
  ]);
  return { start, states, markers: [...new Set([...markers, ...more])] };
}

function stateOf(name: string, { on = {}, patterns = [], ...rest }: StateSpec): State {
  const terminals = new Map<string, Transition | PatternTerminal>([
    ...Object.entries(on).map(([literal, to]) => [literal, typeof to === 'string' ? { to } : to] as const),
    ...patterns.map((one) => [one.prefix, one] as const),
  ]);
  const beginnings = new Set<string>();
  for (const literal of terminals.keys())
    for (let length = 1; length < literal.length; length++) beginnings.add(literal.slice(0, length));
  for (const literal of terminals.keys())
    assert(literal !== '' && !beginnings.has(literal), `in ${name}, ${literal} begins another terminal`);
  const firsts = [...new Set([...terminals.keys()].map((literal) => literal.charAt(0)))];
  // Quotes of code tell mentions of markers in reasoning from calls.
  const apart = rest.text === 'reasoning' ? [...firsts, '`'] : firsts;
  const plain = apart.length === 0 ? /[^]+/y : new RegExp(`[^${apart.join('').replace(/[\\\]^-]/g, '\\$&')}]+`, 'y');
  return { ...rest, terminals, beginnings, plain };
}
