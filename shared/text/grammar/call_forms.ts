/** Formats in which tool calls can be enforced: how one call is written, how several are, and what text must not contain besides them. */
import { COLON, COMMA } from '../../grammar/any_json.ts';
import { choice, EMPTY, optional, repeat, sequence, text, type Expression } from '../../grammar/grammar.ts';
import type { CallForm } from './text_rule.ts';

/** Returns the expression of a marker, in which special tokens may be. */
type Marker = (literal: string) => Expression;

/** One format. */
interface Form {
  /** Returns one call. */
  readonly call: (name: string, args: Expression, marker: Marker) => Expression;
  /** Returns one call, or several. */
  readonly calls: (call: Expression, isParallel: boolean, marker: Marker) => Expression;
  /** Whether several calls stand in one list. */
  readonly isList?: true;
  /** Whether a call is the whole answer. */
  readonly isAlone: boolean;
  /** Texts that begin a call anywhere in a text, and at its start. */
  readonly markers: readonly string[];
  readonly starts: readonly string[];
}

/** One call; with `isParallel` several, with the separator between them. */
const several = (call: Expression, separator: Expression, isParallel: boolean): Expression =>
  isParallel ? sequence(call, repeat(sequence(separator, call), 0)) : call;

const list = (begin: Expression, call: Expression, isParallel: boolean): Expression =>
  sequence(begin, text('['), several(call, COMMA, isParallel), text(']'));

/** Returns the writer of a call as a JSON object whose arguments have this key. */
const jsonCall =
  (argumentsKey: string): Form['call'] =>
  (name, args) =>
    sequence(
      text('{"name"'),
      ...[COLON, text(JSON.stringify(name)), COMMA],
      ...[text(JSON.stringify(argumentsKey)), COLON, args, text('}')],
    );

const json: Form = {
  call: jsonCall('arguments'),
  calls: (call, isParallel) => (isParallel ? list(EMPTY, call, true) : call),
  isAlone: true,
  markers: ['\n{', '\n[', '```json\n'],
  starts: ['{', '[', '```\n'],
};

const hermes: Form = {
  call: jsonCall('arguments'),
  calls: (call, isParallel, marker) =>
    several(
      sequence(marker('<tool_call>'), text('\n'), call, text('\n'), marker('</tool_call>')),
      optional(text('\n')),
      isParallel,
    ),
  isAlone: false,
  markers: ['<tool_call>'],
  starts: [],
};

const llama3Json: Form = {
  call: jsonCall('parameters'),
  calls: (call, isParallel, marker) => {
    const begin = marker('<|python_tag|>');
    // Where the marker is no token of its own, models of this family do not write it.
    return several(begin.kind === 'special' ? sequence(optional(begin), call) : call, text('; '), isParallel);
  },
  isAlone: true,
  markers: ['\n{', '<|python_tag|>'],
  starts: ['{'],
};

const listForm = (begin: string, end?: string): Form => ({
  call: jsonCall('arguments'),
  calls: (call, isParallel, marker) =>
    sequence(list(marker(begin), call, isParallel), end === undefined ? EMPTY : marker(end)),
  isList: true,
  isAlone: false,
  markers: [begin],
  starts: [],
});

const mistralArgs: Form = {
  call: (name, args, marker) => sequence(text(name), marker('[ARGS]'), args),
  calls: (call, isParallel, marker) => several(sequence(marker('[TOOL_CALLS]'), call), EMPTY, isParallel),
  isAlone: false,
  markers: ['[TOOL_CALLS]'],
  starts: [],
};

const functools: Form = {
  call: jsonCall('arguments'),
  calls: (call, isParallel) => list(text('functools'), call, isParallel),
  isList: true,
  isAlone: false,
  markers: ['functools[', '<|tool_call|>'],
  starts: [],
};

/** A call ends with an end token, so there is one. */
const harmony: Form = {
  call: (name, args, marker) =>
    sequence(
      ...[marker('<|channel|>'), text(`commentary to=functions.${name} `)],
      ...[marker('<|constrain|>'), text('json'), marker('<|message|>'), args],
    ),
  calls: (call) => call,
  isAlone: true,
  // All markers of this family begin so; the shorter the text, the fewer states its automaton has.
  markers: ['<|'],
  starts: [],
};

/** Formats by name. */
export const callForms: Readonly<Record<CallForm, Form>> = {
  hermes,
  json,
  harmony,
  llama3_json: llama3Json,
  mistral: listForm('[TOOL_CALLS]'),
  mistral_args: mistralArgs,
  phi4: listForm('<|tool_call|>', '<|/tool_call|>'),
  phi4_functools: functools,
  granite: listForm('<|tool_call|>'),
};

/** Returns the markers that a form's calls have. */
export function markersOf(form: CallForm): ReadonlySet<string> {
  const { call, calls } = callForms[form];
  const found = new Set<string>();
  const marker = (literal: string): Expression => {
    found.add(literal);
    return text(literal);
  };
  calls(choice(call('f', EMPTY, marker)), true, marker);
  return found;
}
