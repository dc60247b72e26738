/** The choice of a format by a model's chat template, and what a prompt's end says of the answer. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { chooseFormat, OutputFormat, prefixReader } from '../../../shared/text/output/output_format.ts';

const auto = { tools: 'auto', reasoning: 'auto' } as const;

/** Parts of these models' templates from which their format is known. */
const templates: readonly (readonly [model: string, template: string, tools: string, reasoning: string | undefined])[] =
  [
    ['Qwen 2.5', '{{- \'\\n<tool_call>\\n{"name": \' }}', 'hermes', undefined],
    ['Qwen3', "{{- '<think>\\n' }}{{- '\\n<tool_call>\\n{\"name\": ' }}", 'hermes', 'think'],
    ['Qwen3-Coder', "{{- '\\n<tool_call>\\n<function=' }}{{- '<parameter=' }}", 'qwen3_xml', undefined],
    [
      'Llama 3.2',
      '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\' }}',
      'llama3_json',
      undefined,
    ],
    ['Llama 3.2, pythonic', '{{- "[func_name1(params_name1=params_value1)]" }}<|python_tag|>', 'pythonic', undefined],
    ['Llama 4', '{{- "<|python_start|>" }}', 'pythonic', undefined],
    ['Mistral Nemo', '{{- "[TOOL_CALLS][" }}', 'mistral', undefined],
    ['Magistral', '{{- "[TOOL_CALLS]" }}[THINK]', 'mistral', 'mistral'],
    ['Phi-4-mini', "{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", 'phi4', undefined],
    [
      'Granite 3.2',
      'respond with <|tool_call|> followed by a JSON list. Here is my thought process:',
      'granite',
      'granite',
    ],
    ['Gemma 3', '{{ "<start_of_turn>" }}', 'json', undefined],
    ['Gemma 4', "{{ '<|tool_call>call:' }}{{ '<|channel>thought\\n' }}", 'gemma4', 'gemma4'],
    ['gpt-oss', '{{- "<|start|>assistant<|channel|>analysis<|message|>" }}', 'harmony', 'harmony'],
    ['GLM 4.5', "{{ '<tool_call>' }}<arg_key>{{ k }}</arg_key><think>", 'glm', 'think'],
    ['DeepSeek R1, distilled', "{% set content = content.split('</think>')[-1] %}", 'json', 'think'],
  ];

test.each(templates)('%s', (_, template, tools, reasoning) => {
  const { calls, ...choice } = chooseFormat(template, undefined, auto);
  assert.deepEqual(choice, { tools, reasoning, responseTemplate: undefined });
  if (calls !== undefined) assert(calls.startsWith(tools), `${calls} are calls of ${tools}`);
});

test('calls are enforced in the form that the template has, where a grammar can have it', () => {
  const form = (template: string): string | undefined => chooseFormat(template, undefined, auto).calls;
  assert.equal(form('[TOOL_CALLS][{'), 'mistral');
  assert.equal(form('[TOOL_CALLS]name[ARGS]{'), 'mistral_args');
  assert.equal(form('<|tool|><|/tool|>'), 'phi4');
  assert.equal(form('functools[{'), 'phi4_functools');
  assert.equal(form('<tool_call><arg_key>'), undefined);
  const own = chooseFormat('<tool_call>', { fields: {} }, auto);
  assert.equal(own.calls, undefined, 'a response template has no form');
});

test('an option names a parser, or turns it off', () => {
  const choice = chooseFormat('<tool_call><think>', undefined, { tools: 'pythonic', reasoning: 'none' });
  assert.deepEqual([choice.tools, choice.reasoning], ['pythonic', undefined]);
  const none = new OutputFormat(chooseFormat('<tool_call>', undefined, { tools: 'none', reasoning: 'none' }));
  const options = { tools: new Map<string, unknown>(), isParallel: true, prefix: '', newId: () => 'x' };
  for (const hasTools of [true, false]) assert.equal(none.parser({ ...options, hasTools }), undefined);
});

test('special tokens are left out of the text, but for the markers of the format', () => {
  const special = ['<s>', '<|tool_call|>', '<|/tool_call|>', '<|channel|>', '<|constrain|>', '<|end|>', '<pad>'];
  const hidden = (tools: 'phi4' | 'harmony' | undefined, hasTools: boolean): string[] | undefined => {
    const reasoning = tools === 'harmony' ? 'harmony' : undefined;
    const all = special.map((content, id) => ({ id, content }));
    const ids = new OutputFormat({ tools, reasoning, responseTemplate: undefined }, all).hiddenTokens(hasTools);
    return ids && special.filter((_, id) => ids.has(id));
  };
  assert.deepEqual(hidden('phi4', true), ['<s>', '<|channel|>', '<|constrain|>', '<|end|>', '<pad>']);
  assert.equal(hidden('phi4', false), undefined, 'no parser reads the text');
  assert.deepEqual(hidden('harmony', false), ['<s>', '<|tool_call|>', '<|/tool_call|>', '<pad>']);
});

describe('the end of a prompt', () => {
  const prefix = (prompt: string, reasoning: 'think' | 'deepseek_r1', continued?: string): string =>
    prefixReader({ tools: undefined, reasoning, responseTemplate: undefined })(prompt, continued);

  test('opens the reasoning, or closes it', () => {
    assert.equal(prefix('user\nWhat is <think>?\nassistant\n', 'think'), '');
    assert.equal(prefix('assistant\n<think>\n', 'think'), '<think>');
    assert.equal(prefix('assistant\n<think>\n\n</think>\n\n', 'think'), '</think>');
    assert.equal(prefix('assistant\n<think>\n\n</think>\n\n', 'deepseek_r1'), '</think>');
  });

  test('is the begin of a message that is continued', () => {
    assert.equal(prefix('assistant\n<think>\nA', 'think', '<think>\nA'), '<think>\nA');
    assert.equal(prefix('assistant\n<think>A</think>B', 'think', '<think>A</think>B'), '<think></think>B');
    // Each sample reads it again: of a long one the end is enough.
    assert.equal(prefix('a', 'think', `<think>${'x'.repeat(1e6)}`), `<think>${'x'.repeat(4_096)}`);
    assert.equal(prefix('assistant\nThe', 'think', 'The'), 'The');
    assert.equal(prefix('assistant\nThe', 'deepseek_r1', 'The'), '</think>The');
  });
});

test('a parser reads reasoning that a model begins again after the closed block of the prompt', () => {
  const format = new OutputFormat({ tools: undefined, reasoning: 'think', responseTemplate: undefined });
  const options = { tools: new Map<string, unknown>(), hasTools: false, isParallel: true, newId: () => '' };
  const parser = format.parser({ ...options, prefix: '</think>' });
  assert(parser);
  const deltas = [...parser.push('<think>\nA\n</think>\n\nB'), ...parser.end()];
  assert.deepEqual(deltas, [
    { kind: 'reasoning', text: 'A' },
    { kind: 'content', text: 'B' },
  ]);
});
