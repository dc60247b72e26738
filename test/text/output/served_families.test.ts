/**
 * A walk over the families that the README lists as served: the chat template of each leads to the format in which its models write calls, and calls
 * come out as they were written: one, two, after reasoning, in reasoning that is not closed, broken, and with values that hold the format's
 * own markers. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import { chooseFormat } from '../../../shared/text/output/output_format.ts';
import { toolFamilies, toolFamilyNames, type ToolFamily } from '../../../shared/text/output/tool_families.ts';
import { families, type Call } from './family_texts.ts';
import { blocks, served } from './served_templates.ts';
import { ParsedFormat, type Parsed } from './support.ts';

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
