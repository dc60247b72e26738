/** Formats in which models write tool calls: one table per family. */
import { harmonyStates } from './harmony_states.ts';
import type { States, ToolStates } from './output_table.ts';

/** A JSON list of calls, up to `]`, which leads to `close`. */
const list = (close: string): States => ({
  list: { text: 'call', next: 'more' },
  more: { text: 'tail', on: { ',': 'list', ']': close } },
});

/** Calls as a list or alone, behind a marker. */
const calls: States = {
  calls: { text: 'space', on: { '[': 'list', '{': { to: 'single', keep: 1 } } },
  single: { text: 'call', next: 'close' },
  ...list('close'),
};

/** Qwen 2.5 and 3, SmolLM3, Granite 4, Hermes 2 Pro: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. */
const hermes: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '<tool_call>': 'call' } },
    call: { text: 'call', next: 'close' },
    close: { text: 'tail', on: { '</tool_call>': 'content', '<tool_call>': 'call' } },
  },
};

/** Llama 3: `{"name": …, "parameters": {…}}`, `;` between calls; at the beginning of a line, or behind a marker. */
const llama3Json: ToolStates = {
  start: 'start',
  states: {
    start: { text: 'space', on: { '<|python_tag|>': 'call', '{': { to: 'known', keep: 1 } }, next: 'content' },
    content: { text: 'content', on: { '<|python_tag|>': 'call', '\n{': { to: 'known', keep: 1 } } },
    call: { text: 'call', next: 'more' },
    known: { text: 'known_call', next: 'more' },
    more: { text: 'tail', on: { ';': 'known', '{': { to: 'known', keep: 1 }, '<|python_tag|>': 'call' } },
  },
};

/** Models whose template reads no tools, told in a system message: a line of JSON per call, also as a list or in a code block. */
const json: ToolStates = {
  start: 'start',
  states: {
    start: {
      text: 'space',
      on: { '{': { to: 'known', keep: 1 }, '[': 'known', '```json\n': 'known', '```\n': 'known' },
      next: 'content',
    },
    content: { text: 'content', on: { '\n{': { to: 'known', keep: 1 }, '\n[': 'known', '```json\n': 'known' } },
    known: { text: 'known_call', next: 'more' },
    more: {
      text: 'tail',
      on: { ',': 'known', ';': 'known', '{': { to: 'known', keep: 1 }, ']': 'more', '```': 'more' },
    },
  },
};

/** Llama 3.2 and 4, Gemma 3, LFM2 and OLMo 3: `[f(a=1), g(b="x")]`, at the beginning of a line or behind a marker. */
const pythonic: ToolStates = {
  start: 'start',
  states: {
    start: {
      text: 'space',
      on: {
        '[': 'known',
        '<|python_start|>': 'open',
        '<|tool_call_start|>': 'open',
        '<function_calls>': 'open',
        '```tool_code\n': 'open',
      },
      next: 'content',
    },
    content: {
      text: 'content',
      on: { '\n[': 'known', '<|python_start|>': 'open', '<|tool_call_start|>': 'open', '<function_calls>': 'open' },
    },
    open: { text: 'space', on: { '[': 'call' }, next: 'call' },
    call: { text: 'python_call', next: 'marked' },
    marked: {
      text: 'space',
      on: { ',': 'call', ']': 'closed', '</function_calls>': 'content', '```': 'content' },
      next: 'call',
    },
    closed: {
      text: 'tail',
      on: {
        '<|python_end|>': 'content',
        '<|tool_call_end|>': 'content',
        '</function_calls>': 'content',
        '```': 'content',
      },
    },
    known: { text: 'known_python_call', next: 'more' },
    more: { text: 'tail', on: { ',': 'known', ']': 'content' } },
  },
};

/** Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or from version 11 of its tokenizer `[TOOL_CALLS]f[ARGS]{…}`. */
const mistral: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '[TOOL_CALLS]': 'calls' } },
    calls: { text: 'space', on: { '[': 'list', '{': { to: 'single', keep: 1 } }, next: 'name' },
    single: { text: 'call', next: 'content' },
    ...list('content'),
    name: { text: 'name', on: { '[ARGS]': 'object', '[CALL_ID]': 'id', '{': { to: 'object', keep: 1 } } },
    id: { text: 'dropped', on: { '[ARGS]': 'object' } },
    object: { text: 'object', next: 'content' },
  },
};

/** Phi-4-mini: `<|tool_call|>[{…}]<|/tool_call|>`, or `functools[{…}]`. */
const phi4: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '<|tool_call|>': 'calls', 'functools[': 'list' } },
    ...calls,
    close: { text: 'tail', on: { '<|/tool_call|>': 'content', '<|tool_call|>': 'calls' } },
  },
};

/** Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`, or `<tool_call>` before it; Granite 4 writes as hermes. */
const granite: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '<|tool_call|>': 'calls', '<tool_call>': 'calls' } },
    ...calls,
    close: { text: 'tail', on: { '</tool_call>': 'content', '<|tool_call|>': 'calls', '<tool_call>': 'calls' } },
  },
};

/** Qwen3-Coder and Qwen 3.5: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`. */
const qwen3Xml: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '<tool_call>': 'open', '<function=': 'name' } },
    open: { text: 'space', on: { '<function=': 'name' } },
    name: { text: 'name', on: { '>': 'parameters' } },
    parameters: { text: 'space', on: { '<parameter=': 'key', '</function>': 'close', '</tool_call>': 'content' } },
    key: { text: 'key', on: { '>': 'value' } },
    value: { text: 'value', on: { '</parameter>': 'parameters' } },
    close: { text: 'tail', on: { '</tool_call>': 'content', '<tool_call>': 'open', '<function=': 'name' } },
  },
};

/** Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`; FunctionGemma the same with other markers. */
const gemma4: ToolStates = {
  start: 'content',
  markers: ['<|"|>', '<escape>'],
  states: {
    content: { text: 'content', on: { '<|tool_call>': 'open', '<start_function_call>': 'open' } },
    open: { text: 'space', on: { 'call:': 'name' } },
    name: { text: 'name', on: { '{': { to: 'object', keep: 1 } } },
    object: { text: 'gemma_object', next: 'close' },
    close: {
      text: 'tail',
      on: {
        '<tool_call|>': 'content',
        '<end_function_call>': 'content',
        '<|tool_call>': 'open',
        '<start_function_call>': 'open',
        'call:': 'name',
      },
    },
  },
};

/** GLM 4.5 and later: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`, with line ends between or not. */
const glm: ToolStates = {
  start: 'content',
  states: {
    content: { text: 'content', on: { '<tool_call>': 'name' } },
    name: { text: 'name', on: { '<arg_key>': 'key', '</tool_call>': 'content' } },
    key: { text: 'key', on: { '</arg_key>': 'between' } },
    between: { text: 'space', on: { '<arg_value>': 'value' } },
    value: { text: 'value', on: { '</arg_value>': 'parameters' } },
    parameters: { text: 'space', on: { '<arg_key>': 'key', '</tool_call>': 'content' } },
  },
};

/** Tool formats by family. */
export const toolStates = {
  hermes,
  llama3_json: llama3Json,
  pythonic,
  mistral,
  phi4,
  granite,
  json,
  qwen3_xml: qwen3Xml,
  gemma4,
  harmony: harmonyStates,
  glm,
} as const satisfies Readonly<Record<string, ToolStates>>;

/** Family of a tool format. */
export type ToolFamily = keyof typeof toolStates;
/** Families of tool formats. */
export const toolFamilies = Object.keys(toolStates) as ToolFamily[];
