/** Tables of the formats in which each parameter of a call stands between markers of its own. */
import { toAll, type StateSpec, type States, type ToolStates } from './output_table.ts';
import type { ValueMarks } from './value_reader.ts';

/** Markers of a format with tags: `<CALL=NAME><parameter=KEY>value</parameter></CALL>`, or `<CALL name="NAME">` in the same way. */
interface Tags {
  /** Marker around calls, without `<` and `>`; several where generations differ. */
  readonly around: readonly string[];
  /** Tag of a call, and of a parameter. */
  readonly call: string;
  readonly parameter: string;
  readonly hasLineEnds?: boolean;
  /** Whether a call may stand without the marker around it. */
  readonly isAloneAllowed?: boolean;
}

function tagged({ around, call, parameter, hasLineEnds = false, isAloneAllowed = false }: Tags): ToolStates {
  const starts = around.map((tag) => `<${tag}>`);
  const ends = around.map((tag) => `</${tag}>`);
  const calls = [`<${call}=`, `<${call} name=`];
  const parameters = [`<${parameter}=`, `<${parameter} name=`];
  const marks: ValueMarks = {
    close: [`</${parameter}>`],
    open: parameters,
    openEnd: '>',
    end: [`</${call}>`, ...ends],
    call: calls,
    calls: starts,
    hasLineEnds,
  };
  const again = { ...toAll(starts, { to: 'open', isCall: true }), ...toAll(calls, { to: 'name', isCall: true }) };
  return {
    start: 'content',
    openers: [...starts, ...(isAloneAllowed ? calls : [])],
    states: {
      content: { text: 'content', on: { ...toAll(starts, 'open'), ...(isAloneAllowed ? toAll(calls, 'name') : {}) } },
      open: { text: 'space', on: toAll(calls, 'name') },
      name: { text: 'name', on: { '>': 'parameters' } },
      parameters: {
        text: 'space',
        on: { ...toAll(parameters, 'key'), [`</${call}>`]: 'close', ...toAll(ends, 'content'), ...again },
      },
      key: { text: 'key', on: { '>': 'value' } },
      value: { text: 'value', marks, next: 'parameters' },
      close: { text: 'tail', on: { ...toAll(ends, 'content'), ...again } },
    },
  };
}

/** Qwen3-Coder and Qwen 3.5: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`. */
export const qwen3Xml = tagged({
  around: ['tool_call'],
  call: 'function',
  parameter: 'parameter',
  hasLineEnds: true,
  isAloneAllowed: true,
});

/** MiniMax-M2: `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke></minimax:tool_call>`. */
export const minimaxM2 = tagged({ around: ['minimax:tool_call'], call: 'invoke', parameter: 'parameter' });

/** DeepSeek V3.2 and V4: MiniMax's tags with a token in each, and a word that tells whether a value is a text. */
export const deepseekV32 = tagged({
  around: ['｜DSML｜function_calls', '｜DSML｜tool_calls'],
  call: '｜DSML｜invoke',
  parameter: '｜DSML｜parameter',
});

const glmValue: StateSpec = {
  text: 'value',
  marks: {
    close: ['</arg_value>'],
    open: ['<arg_key>'],
    openEnd: '</arg_key>',
    end: ['</tool_call>'],
    call: ['<tool_call>'],
    calls: [],
    hasLineEnds: false,
  },
  next: 'parameters',
};
const glmParameters: States = {
  key: {
    text: 'key',
    on: { '</arg_key>': 'between', '<arg_value>': 'value', '<arg_key>': 'key', '</tool_call>': 'content' },
  },
  between: { text: 'space', on: { '<arg_value>': 'value', '<arg_key>': 'key', '</tool_call>': 'content' } },
  value: glmValue,
  parameters: {
    text: 'space',
    on: { '<arg_key>': 'key', '</tool_call>': 'content', '<tool_call>': { to: 'name', isCall: true } },
  },
};

/** GLM 4.5 and later: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`, with line ends between or not. */
export const glm: ToolStates = {
  start: 'content',
  openers: ['<tool_call>'],
  states: {
    content: { text: 'content', on: { '<tool_call>': 'name' } },
    name: { text: 'name', on: { '<arg_key>': 'key', '</tool_call>': 'content' } },
    ...glmParameters,
  },
};
