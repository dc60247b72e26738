/**
 * A walk over the families that the README lists as served: the chat template of each leads to the format in which its models write calls, and calls
 * come out as they were written: one, two, after reasoning, in reasoning that is not closed, broken, and with values that hold the format's
 * own markers. The templates are our own, with what those of the families say of calls and reasoning. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import { chooseFormat } from '../../../shared/text/output/output_format.ts';
import type { ReasoningFamily } from '../../../shared/text/output/reasoning_tables.ts';
import { toolFamilies, toolFamilyNames, type ToolFamily } from '../../../shared/text/output/tool_families.ts';
import { families, type Call } from './family_texts.ts';
import { ParsedFormat, type Parsed } from './support.ts';

/** A family of models as the README names it: the format of its calls, that of its reasoning, and what its template has of both. */
interface Served {
  readonly tools: ToolFamily;
  readonly reasoning?: ReasoningFamily;
  readonly template: string;
  /** Special tokens of its vocabulary, where its template does not tell. */
  readonly tokens?: readonly string[];
}

const HERMES = `{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}`;
const THINK = `{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}`;
const STRIP = `{% if '</think>' in m.content %}{% set content = m.content.split('</think>')[-1] %}{% endif %}`;
const MISTRAL = `[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments }}`;
const QWEN_XML = `<tool_call>\n<function={{ c.function.name }}>\n<parameter={{ k }}>\n{{ v }}\n</parameter>\n</function>\n</tool_call>`;
const DEEPSEEK = `{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '\`\`\`json' + '\n' + tool['function']['arguments'] }}`;
const KIMI = `<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>`;

const served: Readonly<Record<string, Served>> = {
  'Llama 3.1 and 3.3': {
    tools: 'llama3_json',
    template: `{{ 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}<|python_tag|>`,
  },
  'Llama 3.2': { tools: 'pythonic', template: '[func_name1(params_name1=params_value1)]<|python_tag|>' },
  'Mistral 7B 0.3, Nemo': { tools: 'mistral', template: '{{ "[TOOL_CALLS][" }}{{ c.function | tojson }}]' },
  'Mistral Small, Ministral 3': {
    tools: 'mistral',
    reasoning: 'mistral',
    template: `${MISTRAL}[THINK]{{ t }}[/THINK]`,
  },
  Mixtral: { tools: 'mistral', template: '[TOOL_CALLS][{{ c.function | tojson }}]' },
  'Qwen2 and Qwen2.5': { tools: 'hermes', template: HERMES },
  'Qwen3, Qwen3-MoE, Qwen3-Next': { tools: 'hermes', reasoning: 'think', template: HERMES + THINK },
  'Qwen3.5 and Qwen3.6': { tools: 'qwen3_xml', reasoning: 'think', template: QWEN_XML + THINK },
  'Phi-3 and Gemma 2, 3': { tools: 'json', template: '<|user|>{{ m.content }}<|end|>' },
  'Phi-4-mini': { tools: 'phi4', template: '<|tool|>{{ m.tools }}<|/tool|>' },
  'Gemma 4': { tools: 'gemma4', reasoning: 'gemma4', template: `<|tool_call>call:{{ n }}<|channel>thought\n` },
  'OLMo 2': { tools: 'json', template: '<|assistant|>\n{{ m.content }}' },
  'OLMo 3': { tools: 'pythonic', reasoning: 'think', template: `<function_calls>{{ calls }}</function_calls>${STRIP}` },
  'Granite 3': {
    tools: 'granite',
    reasoning: 'granite',
    template: `respond with <|tool_call|> followed by a JSON list. Write your thoughts between <think></think> and your response between <response></response>.`,
  },
  'Granite 4': { tools: 'hermes', template: HERMES },
  SmolLM3: { tools: 'hermes', reasoning: 'think', template: HERMES + THINK },
  'gpt-oss': {
    tools: 'harmony',
    reasoning: 'harmony',
    template: `<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>`,
  },
  'GLM-4.5 to 4.7, GLM-4.7-Flash': {
    tools: 'glm',
    reasoning: 'think',
    template: `<tool_call>{{ n }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n</tool_call>${THINK}`,
  },
  'DeepSeek-V3 and R1': { tools: 'deepseek_v3', reasoning: 'think', template: DEEPSEEK + STRIP },
  'DeepSeek V3.1': {
    tools: 'deepseek_v31',
    reasoning: 'think',
    template: `{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + n + '<｜tool▁sep｜>' + a + '<｜tool▁call▁end｜>' }}${STRIP}`,
  },
  'DeepSeek V3.2': {
    tools: 'deepseek_v32',
    reasoning: 'think',
    template: `<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ n }}">{{ v }}</｜DSML｜invoke>${THINK}`,
  },
  'Kimi K2': { tools: 'kimi_k2', template: KIMI },
  'Kimi K2 Thinking': { tools: 'kimi_k2', reasoning: 'think', template: `<think>{{ rc }}</think>${KIMI}` },
  // The first template of Kimi K2 did not write earlier calls.
  'Kimi K2, first template': {
    tools: 'kimi_k2',
    template: '<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>',
    tokens: ['<|im_end|>', '<|tool_calls_section_begin|>'],
  },
  'MiniMax-M2': {
    tools: 'minimax_m2',
    reasoning: 'think',
    template: `<minimax:tool_call>\n<invoke name="{{ n }}">\n<parameter name="{{ k }}">{{ v }}</parameter>${THINK}<response>{{ m.content }}</response>`,
  },
  LFM2: { tools: 'pythonic', template: 'List of tools: <|tool_list_start|>[{{ tools | tojson }}]<|tool_list_end|>' },
  'LFM2.5': {
    tools: 'pythonic',
    reasoning: 'think',
    template: `List of tools: {{ tools | tojson }}${STRIP}`,
    tokens: ['<|tool_call_start|>', '<|tool_call_end|>'],
  },
};

const schemas = {
  tide: { type: 'object', properties: { place: { type: 'string' }, days: { type: 'integer' } } },
  save: {
    type: 'object',
    properties: { file: { type: 'string' }, text: { type: 'string' }, times: { type: 'integer' } },
  },
};
const one: readonly Call[] = [['tide', { place: 'old mill', days: 2 }]];
const two: readonly Call[] = [...one, ['save', { file: 'a.md', text: 'one\n  two\n\n', times: 3 }]];

/** Formats whose values have no escapes. */
const PARAMETERS: ReadonlySet<ToolFamily> = new Set(['qwen3_xml', 'glm', 'minimax_m2', 'deepseek_v32']);
/** Formats in which a call may begin without a marker: a model that thinks may draft one. */
const UNMARKED: ReadonlySet<ToolFamily> = new Set(['json', 'llama3_json', 'harmony']);

/** The markers around reasoning. */
const blocks: Readonly<Record<ReasoningFamily, readonly [open: string, close: string]>> = {
  think: ['<think>', '</think>\n\n'],
  deepseek_r1: ['<think>', '</think>\n\n'],
  mistral: ['[THINK]', '[/THINK]'],
  granite: ['Here is my thought process: ', 'Here is my response: '],
  gemma4: ['<|channel>thought\n', '<channel|>'],
  harmony: ['<|channel|>analysis<|message|>', '<|end|><|start|>assistant'],
};

const valuesOf = ({ calls, ...rest }: Parsed): object => ({
  ...rest,
  calls: calls.map(([name, text]) => [name, JSON.parse(text) as unknown]),
});
const texts = (tools: ToolFamily): (typeof families)[ToolFamily] => families[tools];

test('every family of the README is here', () => {
  const readme = readFileSync(new URL('../../../README.md', import.meta.url), 'utf8');
  const works = /^Works:[^]*?\n\n/m.exec(readme)?.[0] ?? '';
  const named = works.match(
    /\b(Llama|Mistral|Qwen|Phi|Gemma|OLMo|Granite|SmolLM|Ministral|Mixtral|gpt-oss|GLM|DeepSeek|Kimi|MiniMax|LFM2)/g,
  );
  const walked = Object.keys(served).join(' ');
  for (const name of new Set(named)) assert.match(walked, new RegExp(name), `${name} is in no row of the walk`);
  assert.deepEqual([...new Set(Object.values(served).map(({ tools }) => tools))].sort(), [...toolFamilyNames].sort());
});

describe.each(Object.entries(served))('%s', (_, { tools, reasoning, template, tokens = [] }) => {
  const choice = chooseFormat(template, undefined, { tools: 'auto', reasoning: 'auto' }, tokens);
  const format = new ParsedFormat(choice);
  const { write, before, after } = texts(tools);
  const [open, close] = blocks[reasoning ?? 'think'];

  test('has its format', () => {
    assert.deepEqual([choice.tools, choice.reasoning], [tools, reasoning]);
  });

  test.each([
    ['one call', one],
    ['two calls', two],
  ] as const)('%s, at every split', (name, calls) => {
    const { content, ...rest } = format.parse(before + write(calls), { schemas });
    assert.deepEqual(valuesOf({ content: '', ...rest }), { content: '', reasoning: '', calls }, name);
    assert.equal(content.trim(), 'Let me look.');
  });

  test('text after calls, and what models of other families write, is content', () => {
    const { content, calls } = format.parse(write(one) + after, { schemas });
    assert.deepEqual([content.trim(), calls.length], ['Done.', 1]);
    if (tools === 'harmony') return;
    for (const text of ['See </tool_call> and <|message|>.', 'A <response> tag.', 'Then </think> it ended.'])
      assert.equal(format.parse(text, { schemas }).content, text);
  });

  test('calls that break off at any character have arguments in JSON', () => {
    const whole = write(two);
    for (let at = 1; at < whole.length; at++)
      for (const [name, json] of format.whole(whole.slice(0, at), { schemas }).calls)
        assert.doesNotThrow(() => JSON.parse(json) as unknown, `${name} at ${at}: ${json}`);
  });

  test('calls that the length limit breaks off stay as they were written', () => {
    const whole = write(two);
    const cut = format.whole(whole.slice(0, whole.lastIndexOf('two')), { schemas, isCut: true });
    const [name, json = ''] = cut.calls.at(-1) ?? [];
    // Calls of Python are written when they are whole.
    if (tools === 'pythonic') return;
    assert.equal(name, 'save');
    assert.throws(() => JSON.parse(json) as unknown, json);
  });

  test('a value holds the markers of the format', () => {
    const marker = write(one).slice(0, 12);
    const plain = [
      'A </parameter> or </arg_value> ends it.',
      `An example: ${marker} begins.`,
      '</function>, </invoke>',
    ];
    const held = PARAMETERS.has(tools) ? [...plain, `As in\n${write(one)}\nfor example.\n`] : plain;
    for (const text of held) {
      // Markers of gpt-oss and Gemma are tokens of their own.
      if (['harmony', 'gemma4'].includes(tools)) continue;
      for (const calls of [
        [['save', { file: 'a.md', text, times: 3 }]],
        [['save', { file: 'a.md', times: 3, text }], ...one],
      ] as const) {
        const parsed = format.whole(write(calls), { schemas });
        assert.deepEqual(valuesOf(parsed), { content: '', reasoning: '', calls }, text);
        assert.deepEqual(format.pieces(write(calls), 1, { schemas }), parsed);
      }
    }
  });

  test.runIf(reasoning !== undefined)('calls after reasoning', () => {
    const parsed = format.parse(`${open}I look.${close}${write(two)}`, { schemas });
    assert.deepEqual(valuesOf(parsed), { content: '', reasoning: 'I look.', calls: two });
  });

  test.runIf(reasoning !== undefined && !UNMARKED.has(tools))(
    'a call in reasoning that is not closed leaves it',
    () => {
      // A list in brackets is a call there by the marker in front of it.
      const marked = tools === 'pythonic' ? `<|tool_call_start|>${write(two)}<|tool_call_end|>` : write(two);
      for (const [end, content] of [
        ['', ''],
        [close, ''],
        [`${close}Done.`, 'Done.'],
        ['\nDone.', 'Done.'],
      ] as const) {
        const parsed = format.parse(`${open}I look.\n${marked}${end}`, { schemas });
        assert.deepEqual(valuesOf({ ...parsed, content: parsed.content.trim() }), {
          content,
          reasoning: 'I look.',
          calls: two,
        });
      }
      assert.equal(format.parse(`${open}I look.\n${marked}`, { schemas, hasTools: false }).calls.length, 0);
    },
  );

  test.runIf(reasoning !== undefined)('reasoning mentions calls', () => {
    const marker = write(one).slice(0, 12);
    const thoughts = [
      `A ${marker} block would do, but I know.`,
      `With \`${write(one)}\` it would go.`,
      `A call of another tool, ${write([['other', { a: 1 }]])}, is none.`,
    ];
    for (const thought of tools === 'harmony' ? [] : thoughts) {
      const parsed = format.parse(`${open}${thought}${close}So.`, { schemas });
      assert.deepEqual(parsed, { content: 'So.', reasoning: thought, calls: [] });
    }
  });

  test('a model whose template reads no tools is told its own format', () => {
    const written = toolFamilies[tools].write?.('tide', '{"place":"x","days":2}');
    if (written === undefined) return;
    const parsed = format.parse(written, { schemas });
    assert.deepEqual(valuesOf(parsed), { content: '', reasoning: '', calls: [['tide', { place: 'x', days: 2 }]] });
  });
});
