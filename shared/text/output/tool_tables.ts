/** Formats in which models write tool calls: one table per family. */
import type { Choose, States, ToolStates } from './output_table.ts';

/** A JSON list of calls, up to `]`, which leads to `close`. */
const list = (close: string): States => ({
  list: { text: 'call', next: 'more' },
  more: { text: 'tail', on: { ',': 'list', ']': close } },
});

/** Calls as a list or alone, after a marker. */
const calls: States = {
  calls: { text: 'space', on: { '[': 'list', '{': { to: 'single', keep: 1 } } },
  single: { text: 'call', next: 'close' },
  ...list('close'),
};

/** Qwen 2.5 and 3, SmolLM3, Granite 4, Hermes 2 Pro: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. */
export const hermes: ToolStates = {
  start: 'content',
  openers: ['<tool_call>'],
  states: {
    content: { text: 'content', on: { '<tool_call>': 'call' } },
    call: { text: 'call', next: 'close' },
    close: { text: 'tail', on: { '</tool_call>': 'content', '<tool_call>': 'call' } },
  },
};

/** Llama 3: `{"name": …, "parameters": {…}}`, `;` between calls; at the beginning of a line, or after a marker. */
export const llama3Json: ToolStates = {
  start: 'start',
  openers: ['<|python_tag|>'],
  states: {
    start: { text: 'space', on: { '<|python_tag|>': 'call', '{': { to: 'known', keep: 1 } }, next: 'content' },
    content: { text: 'content', on: { '<|python_tag|>': 'call', '\n{': { to: 'known', keep: 1 } } },
    call: { text: 'call', next: 'more' },
    known: { text: 'known_call', next: 'more' },
    more: { text: 'tail', on: { ';': 'known', '{': { to: 'known', keep: 1 }, '<|python_tag|>': 'call' } },
  },
};

/** Models whose template reads no tools, told in a system message: a line of JSON per call, also as a list or in a code block. */
export const json: ToolStates = {
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

/**
 * Llama 3.2 and 4, LFM2 and OLMo 3: `[f(a=1), g(b="x")]`, at the beginning of a line or after a marker; some templates of LFM2 have a list
 * of JSON after it.
 */
export const pythonic: ToolStates = {
  start: 'start',
  openers: ['<|python_start|>', '<|tool_call_start|>', '<function_calls>'],
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
    open: { text: 'space', on: { '[': 'items', '{': { to: 'object_call', keep: 1 } }, next: 'call' },
    items: { text: 'space', on: { '{': { to: 'object_call', keep: 1 } }, next: 'call' },
    object_call: { text: 'call', next: 'object_more' },
    object_more: { text: 'tail', on: { ',': 'object_call', ']': 'closed', '<|tool_call_end|>': 'content' } },
    call: { text: 'python_call', next: 'marked' },
    marked: {
      text: 'space',
      on: {
        ',': 'call',
        ']': 'closed',
        '</function_calls>': 'content',
        '```': 'content',
        '<|tool_call_end|>': 'content',
        '<|python_end|>': 'content',
      },
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
export const mistral: ToolStates = {
  start: 'content',
  openers: ['[TOOL_CALLS]'],
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
export const phi4: ToolStates = {
  start: 'content',
  openers: ['<|tool_call|>', 'functools['],
  states: {
    content: { text: 'content', on: { '<|tool_call|>': 'calls', 'functools[': 'list' } },
    ...calls,
    close: { text: 'tail', on: { '<|/tool_call|>': 'content', '<|tool_call|>': 'calls' } },
  },
};

/** Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`, or `<tool_call>` before it; Granite 4 writes as hermes. */
export const granite: ToolStates = {
  start: 'content',
  openers: ['<|tool_call|>', '<tool_call>'],
  states: {
    content: { text: 'content', on: { '<|tool_call|>': 'calls', '<tool_call>': 'calls' } },
    ...calls,
    close: { text: 'tail', on: { '</tool_call>': 'content', '<|tool_call|>': 'calls', '<tool_call>': 'calls' } },
  },
};

/** Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`; FunctionGemma the same with other markers. */
export const gemma4: ToolStates = {
  start: 'content',
  openers: ['<|tool_call>', '<start_function_call>'],
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

/** States of a call's arguments: an object, in a code block or not, or nothing up to the marker `end`. */
const objectOrNone = (end: string): States => ({
  arguments: {
    text: 'space',
    on: {
      '{': { to: 'object', keep: 1 },
      '```json': 'arguments',
      '```\n': 'arguments',
      null: 'arguments',
      [end]: 'close',
    },
  },
  object: { text: 'object', next: 'close' },
});

/** Begins the call whose id Kimi wrote: `functions.NAME:INDEX`. */
const byId: Choose = (word) => {
  const id = word.trim();
  const { name, index } = /^(?:functions\.)?(?<name>[\w.-]+?)(?::(?<index>\d+))?$/.exec(id)?.groups ?? {};
  if (name === undefined) return undefined;
  return { to: 'arguments', name, ...(index === undefined ? {} : { id }) };
};

const kimiCall: Record<string, string> = { '<|tool_call_begin|>': 'id' };

/** Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{…}<|tool_call_end|><|tool_calls_section_end|>`. */
export const kimiK2: ToolStates = {
  start: 'content',
  openers: ['<|tool_calls_section_begin|>', '<|tool_call_begin|>'],
  states: {
    content: { text: 'content', on: { '<|tool_calls_section_begin|>': 'section', ...kimiCall } },
    section: { text: 'space', on: { ...kimiCall, '<|tool_calls_section_end|>': 'content' } },
    id: { text: 'word', on: { '<|tool_call_argument_begin|>': { to: byId } } },
    ...objectOrNone('<|tool_call_end|>'),
    close: {
      text: 'tail',
      on: { ...kimiCall, '<|tool_call_end|>': 'close', '<|tool_calls_section_end|>': 'content' },
    },
  },
};

/** Begins the call whose name, or whose type, DeepSeek wrote. */
const byType: Choose = (word, _, isKnown) => {
  const name = word.trim();
  return name === 'function' && !isKnown(name) ? { to: 'own_name' } : { to: 'arguments', name };
};

const [deepseekCalls, deepseekCall] = ['<｜tool▁calls▁begin｜>', '<｜tool▁call▁begin｜>'];
const deepseekAgain = { [deepseekCall]: 'name', '<｜tool▁calls▁end｜>': 'content' };

/**
 * DeepSeek V3.1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`; V3 and R1 write the type before
 * the mark between, and the name after it: `function<｜tool▁sep｜>NAME`, with the arguments in a code block.
 */
export const deepseek: ToolStates = {
  start: 'content',
  openers: [deepseekCalls, deepseekCall],
  states: {
    content: { text: 'content', on: { [deepseekCalls]: 'calls', [deepseekCall]: 'name' } },
    calls: { text: 'space', on: deepseekAgain },
    name: { text: 'word', on: { '<｜tool▁sep｜>': { to: byType } } },
    own_name: {
      text: 'name',
      on: {
        '```json': 'arguments',
        '```\n': 'arguments',
        '{': { to: 'object', keep: 1 },
        '<｜tool▁call▁end｜>': 'close',
      },
    },
    ...objectOrNone('<｜tool▁call▁end｜>'),
    close: { text: 'tail', on: { '```': 'close', '<｜tool▁call▁end｜>': 'close', ...deepseekAgain } },
  },
};
