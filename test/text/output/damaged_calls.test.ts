/**
 * Calls that models write with a flaw, as a second reader of the parsers found them: markers that were left out or stand within values, drafts in
 * reasoning, arguments that are nearly JSON. Nothing is lost, arguments are JSON, and hostile texts are read once and a bounded part of them
 * again. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { ReasoningFamily } from '../../../shared/text/output/reasoning_tables.ts';
import type { ToolFamily } from '../../../shared/text/output/tool_families.ts';
import { PendingText } from '../../../shared/text/output/pending_text.ts';
import { ParsedFormat, type ParseOptions, type Parsed } from './support.ts';

const schemas = {
  tide: { type: 'object', properties: { place: { type: 'string' }, days: { type: 'integer' } } },
  save: {
    type: 'object',
    properties: { file: { type: 'string' }, text: { type: 'string' }, times: { type: 'integer' } },
  },
};
const open: ParseOptions & { readonly reasoning: ReasoningFamily } = { reasoning: 'think', prefix: '<think>' };
const [qwen, kimi, deepseek] = [
  (text: string): string => `<tool_call>\n<function=save>\n<parameter=text>\n${text}`,
  (text: string): string => `<|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>${text}<|tool_call_end|>`,
  (text: string): string => `<｜tool▁call▁begin｜>${text}<｜tool▁call▁end｜>`,
];
const tideCall = '<tool_call>\n<function=tide>\n<parameter=place>\nx\n</parameter>\n</function>\n</tool_call>';

type Case = readonly [
  family: ToolFamily,
  text: string,
  expected: Partial<Parsed>,
  options?: ParseOptions & { readonly reasoning?: ReasoningFamily },
];

const cases: readonly Case[] = [
  // A call begins before the one before it has ended.
  [
    'qwen3_xml',
    '<tool_call>\n<function=tide>\n<parameter=place>\nx\n</parameter>\n<function=save>\n<parameter=file>\ny\n</parameter>\n</function>\n</tool_call>',
    {
      calls: [
        ['tide', '{"place": "x"}'],
        ['save', '{"file": "y"}'],
      ],
    },
  ],
  [
    'qwen3_xml',
    '<function=save><parameter=times></parameter><function=tide>',
    { content: '<function=tide>', calls: [['save', '{}']] },
  ],
  [
    'glm',
    '<tool_call>tide<arg_key>place</arg_key><arg_value>x</arg_value>\n<tool_call>save\n<arg_key>file</arg_key><arg_value>y</arg_value></tool_call>',
    {
      calls: [
        ['tide', '{"place": "x"}'],
        ['save', '{"file": "y"}'],
      ],
    },
  ],
  [
    'qwen3_xml',
    qwen(`ab\n${tideCall}`),
    {
      calls: [
        ['save', '{"text": "ab"}'],
        ['tide', '{"place": "x"}'],
      ],
    },
  ],
  // A value that is not ended, with prose after the call.
  ['qwen3_xml', qwen('a\n</tool_call>bye'), { content: 'bye', calls: [['save', '{"text": "a"}']] }],
  ['qwen3_xml', qwen('a</function></tool_call>bye'), { content: 'bye', calls: [['save', '{"text": "a"}']] }],
  // Markers within values.
  [
    'qwen3_xml',
    qwen('`</parameter>` ends a parameter; `</function></tool_call>` a call.\n</parameter>\n</function>\n</tool_call>'),
    { calls: [['save', '{"text": "`</parameter>` ends a parameter; `</function></tool_call>` a call."}']] },
  ],
  [
    'minimax_m2',
    '<minimax:tool_call><invoke name="save"><parameter name="text">use <parameter name="times"> here</parameter>\n<parameter name="times">3</parameter></invoke></minimax:tool_call>',
    { calls: [['save', '{"text": "use <parameter name=\\"times\\"> here", "times": 3}']] },
  ],
  // Text that stands where a call would.
  [
    'qwen3_xml',
    '<tool_call><function=tide><parameter=place>\nx\n</parameter>\n<tool_call>\nI stop.',
    { content: '<tool_call>\nI stop.', calls: [['tide', '{"place": "x"}']] },
  ],
  // The limit of the length: later calls and text are there.
  [
    'qwen3_xml',
    `${qwen('Use `<function=foo>` to call.\n</parameter>\n</function>\n</tool_call>')}\n${tideCall}\nDone.`,
    {
      content: '\nDone.',
      calls: [
        ['save', '{"text": "Use `<function=foo>` to call."}'],
        ['tide', '{"place": "x"}'],
      ],
    },
    { isCut: true },
  ],
  [
    'qwen3_xml',
    qwen('It ends with </parameter> in XML. And'),
    { calls: [['save', '{"text": "It ends with </parameter> in XML. And']] },
    { isCut: true },
  ],
  ['qwen3_xml', qwen('abc <par'), { calls: [['save', '{"text": "abc <par']] }, { isCut: true }],
  // Reasoning that goes on after a call in it, or whose end a draft swallows.
  [
    'qwen3_xml',
    `I could ${tideCall}\nHm, wait.\n</think>Ok`,
    { content: 'Ok', reasoning: 'I could\nHm, wait.', calls: [['tide', '{"place": "x"}']] },
    open,
  ],
  [
    'qwen3_xml',
    'Think: <function=tide>\n<parameter=place>\nx</think>ok',
    { content: 'ok', reasoning: 'Think:', calls: [['tide', '{"place": "x"}']] },
    open,
  ],
  [
    'hermes',
    'See:\n```\n<tool_call>{"name": "tide", "arguments": {}}</tool_call>\n```\n</think>Ok',
    { content: 'Ok', reasoning: 'See:\n```\n<tool_call>{"name": "tide", "arguments": {}}</tool_call>\n```' },
    open,
  ],
  [
    'granite',
    '<think>a<|tool_call|>[{"name": "tide", "arguments": {}}]</think><response>b</response>',
    { content: 'b', reasoning: 'a', calls: [['tide', '{}']] },
    { reasoning: 'granite' },
  ],
  ['granite', '<think>a</think><respo', { content: '<respo', reasoning: 'a' }, { reasoning: 'granite' }],
  // Arguments that are no object, or nearly one.
  [
    'harmony',
    '<|channel|>commentary to=functions.tide<|message|>print(1)<|call|>',
    { content: 'print(1)', calls: [['tide', '{}']] },
  ],
  [
    'harmony',
    '<|channel|>commentary to=tide<|message|>```json\n{"a": 1}\n```<|call|>',
    { calls: [['tide', '{"a": 1}']] },
  ],
  ['harmony', '<|channel|>commentary to=functions.tide<|message|>null<|call|>', { calls: [['tide', '{}']] }],
  [
    'gemma4',
    '<|tool_call>call:tide{place:<|"|>a<|"|>xyz,days:3}<tool_call|>',
    { content: 'xyz', calls: [['tide', '{"place": "a", "days": 3}']] },
  ],
  ['gemma4', '<|tool_call>call:tide{place:,days:3}<tool_call|>', { calls: [['tide', '{"place": null, "days": 3}']] }],
  [
    'hermes',
    '<tool_call>{"name": "tide", "arguments": {"place": "x" "days": [1,], "more": {}}}</tool_call>',
    { calls: [['tide', '{"place": "x" , "days": [1], "more": {}}']] },
  ],
  [
    'hermes',
    '<tool_call>{"name": "tide", "arguments": {"a": True, "b": "x\ny\\d", "c": tru',
    { calls: [['tide', '{"a": true, "b": "x\\ny\\\\d", "c": true}']] },
  ],
  ['kimi_k2', kimi(''), { calls: [['tide', '{}']] }],
  ['kimi_k2', kimi('null'), { calls: [['tide', '{}']] }],
  ['deepseek_v31', deepseek('tide<｜tool▁sep｜>```json\n{"a": 1}\n```'), { calls: [['tide', '{"a": 1}']] }],
  ['deepseek_v3', deepseek('function<｜tool▁sep｜>tide'), { calls: [['tide', '{}']] }],
  ['glm', '<tool_call>save\n<arg_key>times</arg_key>\n</tool_call>ok', { content: 'ok', calls: [['save', '{}']] }],
  [
    'pythonic',
    '<|tool_call_start|>tide(place="x")<|tool_call_end|>ok',
    { content: 'ok', calls: [['tide', '{"place": "x"}']] },
  ],
];

const named = cases.map(([tools, text, expected, options = {}]) => ({ tools, text, expected, options }));

test.each(named)('$tools: $text', ({ tools, text, expected, options: { reasoning, ...options } }) => {
  const format = new ParsedFormat({ tools, reasoning });
  assert.deepEqual(format.parse(text, { schemas, ...options }), { content: '', reasoning: '', calls: [], ...expected });
});

test.each(['<', '<t', '<think', '\n<'])('the end of an answer that could begin a marker is text: %j', (text) => {
  assert.equal(new ParsedFormat({ tools: 'hermes', reasoning: 'think' }).parse(text).content, text);
});

describe('hostile texts', () => {
  test('how much is read again is bounded (P1)', () => {
    const pending = new PendingText();
    for (let i = 0; i < 17; i++) {
      assert.equal(pending.isSpent, false);
      pending.again('x'.repeat(1 << 16));
    }
    assert.equal(pending.isSpent, true);
    pending.add('new');
    assert.deepEqual([pending.next()?.text, pending.next()?.at], ['new', 0]);
  });

  const texts: readonly (readonly [ToolFamily, string, ParseOptions])[] = [
    ['qwen3_xml', `${qwen('')}${'</parameter><parameter=zz><parameter=times>'.repeat(2_000)}`, {}],
    [
      'minimax_m2',
      `<minimax:tool_call><invoke name="save"><parameter name="text">${'</parameter>x<parameter name='.repeat(2_000)}`,
      {},
    ],
    ['hermes', `${'<tool_call>{"name": ['.repeat(4_000)}${']}'.repeat(4_000)}`, { prefix: '<think>' }],
    ['hermes', '<tool_call>{"a":['.repeat(40_000), { prefix: '<think>' }],
    ['harmony', `<|channel|>commentary to=functions.tide<|message|>{}${'x'.repeat(200_000)}`, {}],
    ['gemma4', `<|tool_call>call:tide{a:${'['.repeat(200_000)}`, {}],
  ];
  test.each(texts)('%s', (tools, text, options) => {
    const reasoning = tools === 'hermes' ? 'think' : undefined;
    const { calls, ...rest } = new ParsedFormat({ tools, reasoning }).whole(text, { schemas, ...options });
    for (const [, json] of calls) assert.doesNotThrow(() => JSON.parse(json) as unknown);
    assert(rest.content.length + rest.reasoning.length + calls.length > 0);
  });
});
