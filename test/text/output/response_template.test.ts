/** A checkpoint's own response template: its fields, content parsers and transforms, at every split of the text. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { chooseFormat, prefixReader } from '../../../shared/text/output/output_format.ts';
import { responseTemplate } from '../../../shared/text/output/response_template.ts';
import { ParsedFormat } from './support.ts';

const asFunction = { type: 'function', function: '{content}' };
const named = { type: 'function', function: { name: '{name}', arguments: '{content}' } };
const thinking = { open: '<think>', close: '</think>', content: 'text' };

const chatml = {
  defaults: { role: 'assistant' },
  start_anchor: '<|im_start|>assistant\n',
  fields: {
    thinking,
    tool_calls: { open: '<tool_call>', close: '</tool_call>', repeats: true, content: 'json', transform: asFunction },
    content: { close: '<|im_end|>', content: 'text' },
  },
};

const parameters = {
  start_anchor: 'A:',
  fields: {
    thinking,
    tool_calls: {
      open_pattern: '<tool_call>\\s*<function=(?P<name>\\w+)>',
      close: '</tool_call>',
      repeats: true,
      content: 'xml-inline',
      content_args: {
        tag_pattern: '<parameter=(?P<key>\\w+)>\\s*(?P<value>.*?)\\s*</parameter>',
        value_parser: { name: 'json', args: { allow_non_json: true } },
      },
      transform: named,
    },
    content: {},
  },
};

const channels = {
  start_anchor: '<|start|>assistant',
  fields: {
    thinking: { open_pattern: '<\\|channel\\|>analysis.*?<\\|message\\|>', close: '<|end|>', content: 'text' },
    tool_calls: {
      open_pattern: '<\\|channel\\|>commentary to=functions\\.(?P<name>\\w+).*?<\\|message\\|>',
      close: '<|call|>',
      repeats: true,
      content: 'json',
      transform: named,
    },
    content: { open: '<|channel|>final<|message|>', close: ['<|return|>', '<|end|>'] },
  },
};

const actions = {
  start_anchor: 'A:',
  fields: {
    tool_calls: {
      open: ['<|START_ACTION|>', '<|ACTION|>'],
      close_pattern: '<\\|END_ACTION\\|>',
      content: 'json',
      transform_each: true,
      transform: { function: { name: '{tool_name}', arguments: '{parameters}' } },
    },
    content: {},
  },
};

const quoted = {
  start_anchor: 'A:',
  fields: {
    tool_calls: {
      open_pattern: '<call>call:(?P<name>\\w+)',
      close: '</call>',
      content: 'json',
      content_args: { unquoted_keys: true, string_delims: [['<q>', '</q>']] },
      transform: named,
    },
    content: {},
  },
};

const lines = {
  start_anchor: 'A:',
  fields: {
    tool_calls: {
      open_pattern: '<run (?P<name>\\w+)>',
      close: '</run>',
      content: 'kv-lines',
      content_args: { value_parser: { name: 'int' } },
      transform: named,
    },
    content: {},
  },
};

const cases: readonly (readonly [name: string, template: object, text: string, expected: object])[] = [
  [
    'reasoning, text and calls in JSON',
    chatml,
    '<think>\nA fact.\n</think>\n\nSo:\n<tool_call>\n{"name": "f", "arguments": {"a": "</x>"}}\n</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call><|im_end|>',
    {
      reasoning: 'A fact.',
      content: 'So:\n',
      calls: [
        ['f', '{"a": "</x>"}'],
        ['g', '{}'],
      ],
    },
  ],
  ['a call that is none', chatml, '<tool_call>no</tool_call>', { content: '<tool_call>no</tool_call>' }],
  [
    'tags in a call',
    parameters,
    '<tool_call>\n<function=f><parameter=city>London</parameter><parameter=n> 3 </parameter></function></tool_call> Yes.',
    { content: ' Yes.', calls: [['f', '{"city":"London","n":3}']] },
  ],
  [
    'a region that the answer breaks off',
    parameters,
    'x<tool_call><function=f><parameter=a>1</parameter>',
    { content: 'x', calls: [['f', '{"a":1}']] },
  ],
  [
    'the beginning of a pattern that does not go on',
    parameters,
    '<tool_call> is a tag',
    { content: '<tool_call> is a tag' },
  ],
  [
    'channels with patterns',
    channels,
    '<|channel|>analysis<|message|>Think.<|end|><|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    { reasoning: 'Think.', calls: [['f', '{"a": 1}']] },
  ],
  ['an explicit region for content', channels, '<|channel|>final<|message|>Hello.<|return|>', { content: 'Hello.' }],
  [
    'a list of records',
    actions,
    'x <|START_ACTION|>[{"tool_name": "f", "parameters": {"a": [1]}}, {"tool_name": "g", "parameters": {}}]<|END_ACTION|>',
    {
      content: 'x ',
      calls: [
        ['f', '{"a":[1]}'],
        ['g', '{}'],
      ],
    },
  ],
  [
    'records of another shape',
    actions,
    '<|ACTION|>[{"a": 1}]<|END_ACTION|>',
    { content: '<|ACTION|>[{"a": 1}]<|END_ACTION|>' },
  ],
  [
    'keys without quotes and marks around strings',
    quoted,
    '<call>call:f{city:<q>a "b", c:{d}</q>,n:1}</call>',
    { calls: [['f', '{"city":"a \\"b\\", c:{d}","n":1}']] },
  ],
  ['lines of keys and values', lines, '<run f>\na: 1\n\nb: -2\n</run>', { calls: [['f', '{"a":1,"b":-2}']] }],
];

describe('texts by template', () => {
  test.each(cases)('%s', (_, template, text, expected) => {
    const format = new ParsedFormat({ responseTemplate: template });
    assert.deepEqual(format.parse(text), { content: '', reasoning: '', calls: [], ...expected });
  });
});

test('a call whose arguments are a JSON object is streamed', () => {
  const format = new ParsedFormat({ responseTemplate: chatml });
  const kinds = format
    .deltas(['<tool_call>{"name": "f", "arguments": {"a', '": 1}}</tool_call>'])
    .map(({ kind }) => kind);
  assert.deepEqual(kinds, ['call', 'arguments', 'arguments']);
});

test('without tools, text that looks like a call is content', () => {
  const text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
  const format = new ParsedFormat({ responseTemplate: chatml });
  assert.deepEqual(format.parse(text, { hasTools: false }), { content: text, reasoning: '', calls: [] });
});

test('an answer goes on where its prompt ends', () => {
  const choice = chooseFormat('<tool_call>', chatml, { tools: 'auto', reasoning: 'auto' });
  const before = '<|im_start|>assistant\n<think>Earlier.</think>x<|im_end|>\n<|im_start|>assistant\n';
  assert.equal(prefixReader(choice)(before, undefined), '');
  const prefix = prefixReader(choice)(`${before}<think>\n`, undefined);
  assert.equal(prefix, '<think>\n');
  const format = new ParsedFormat({ responseTemplate: chatml });
  assert.deepEqual(format.parse('A fact.</think>Yes.', { prefix }), {
    content: 'Yes.',
    reasoning: 'A fact.',
    calls: [],
  });
});

test('a name that the options give wins over the template', () => {
  const own = chooseFormat('<tool_call>', chatml, { tools: 'auto', reasoning: 'auto' });
  assert.equal(own.responseTemplate, chatml);
  const other = chooseFormat('<tool_call>', chatml, { tools: 'glm', reasoning: 'auto' });
  assert.deepEqual(
    { ...other, calls: undefined },
    { calls: undefined, tools: 'glm', reasoning: undefined, responseTemplate: undefined },
  );
});

test.each([
  ['no object', 7],
  ['no fields', { start_anchor: 'x' }],
  ['another version', { ...chatml, version: 2 }],
  [
    'an unknown content parser',
    { ...chatml, fields: { tool_calls: { open: 'a', close: 'b', content: 'yaml', transform: named } } },
  ],
  [
    'a pattern that begins with anything',
    { ...chatml, fields: { tool_calls: { open_pattern: '.*x', close: 'b', transform: named } } },
  ],
  [
    'a pattern that JavaScript cannot read',
    { ...chatml, fields: { tool_calls: { open_pattern: 'a(?P<name>\\w++)', close: 'b', transform: named } } },
  ],
  ['a field that nothing opens', { ...chatml, fields: { thinking: {} } }],
])('%s is refused', (_, template) => {
  assert.throws(() => responseTemplate(template), /response_template|regular|pattern/i);
});
