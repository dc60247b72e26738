/** Streams of the output parser: when pieces leave it, what it holds, ids of calls, and the reasoning's formats. Budget: 10 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { OutputFormat } from '../../../shared/text/output/output_format.ts';
import { outputTable } from '../../../shared/text/output/output_table.ts';
import type { ReasoningFamily } from '../../../shared/text/output/reasoning_tables.ts';
import { Random } from '../../../shared/base/random.ts';
import { joined, ParsedFormat, type Parsed } from './support.ts';

const hermes = new ParsedFormat({ tools: 'hermes', reasoning: 'think' });

describe('streams', () => {
  test('a call is sent as its name, and then its arguments as they come', () => {
    const text = '<tool_call>\n{"name": "tide", "arguments": {"place": "old mill"}}\n</tool_call>';
    const deltas = hermes.deltas(text.split(/(?<= )/));
    assert.deepEqual(deltas, [
      { kind: 'call', index: 0, id: 'call_000000000000000000000000', name: 'tide' },
      { kind: 'arguments', index: 0, text: '{"place": ' },
      { kind: 'arguments', index: 0, text: '"old ' },
      { kind: 'arguments', index: 0, text: 'mill"}' },
    ]);
  });

  test('plain text leaves at once, but for what could begin a marker', () => {
    assert.deepEqual(hermes.deltas(['Locker 42', ' opens <to', 'day']), [
      { kind: 'content', text: 'Locker 42' },
      { kind: 'content', text: ' opens ' },
      { kind: 'content', text: '<today' },
    ]);
  });

  test('a long text parameter is streamed while it is written', () => {
    const format = new ParsedFormat({ tools: 'qwen3_xml' });
    const schemas = { save: { type: 'object', properties: { file: { type: 'string' } } } };
    const deltas = format.deltas(
      ['<tool_call><function=save><parameter=file>\nline 1', '\nline 2', '\n</parameter></function>'],
      { schemas },
    );
    assert.deepEqual(
      deltas.flatMap((delta) => (delta.kind === 'arguments' ? [delta.text] : [])),
      ['{"file": "line 1', '\\nline 2', '"}'],
    );
  });

  test('text that strays into a call comes after it, so that the arguments of a call are never torn', () => {
    const format = new ParsedFormat({ tools: 'qwen3_xml' });
    const text =
      '<tool_call><function=f><parameter=a>1</parameter>Note<parameter=b>2</parameter></function></tool_call> so';
    const deltas = format.deltas([text]);
    assert.deepEqual(
      deltas.map((delta) => ('text' in delta ? [delta.kind, delta.text] : [delta.kind])),
      [['call'], ['arguments', '{"a": 1, "b": 2}'], ['content', 'Note so']],
    );
    // Wherever the text is split, no content stands between the pieces of the arguments.
    const kinds = format.deltas(Array.from(text)).map(({ kind }) => kind);
    assert.equal(kinds.lastIndexOf('arguments') < kinds.indexOf('content'), true);
  });

  test('ids differ, and are nine characters for Mistral', () => {
    const format = new OutputFormat({ tools: 'mistral', reasoning: undefined, responseTemplate: undefined });
    const random = new Random(3);
    const parser = format.parser({
      tools: new Map(),
      hasTools: true,
      isParallel: true,
      prefix: '',
      newId: () => random.u32().toString(16),
    });
    assert(parser);
    const ids = parser
      .push('[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}')
      .flatMap((delta) => (delta.kind === 'call' ? [delta.id] : []));
    expect(new Set(ids).size).toBe(2);
    for (const id of ids) expect(id).toMatch(/^[0-9a-z]{9}$/);
  });

  test('text that could become a call is held up to a bound, and none is lost (P1)', () => {
    const text = `<tool_call>{"arguments": {"a": "${'x'.repeat(400_000)}`;
    const pieces = text.match(/.{1,5000}/g) ?? [];
    const deltas = hermes.deltas(pieces);
    assert.equal(joined(deltas).content, text);
    expect(deltas.length).toBeGreaterThan(20);
  });

  test('a name, a header and a parameter that do not end are content (P1)', () => {
    for (const [tools, text] of [
      ['glm', `<tool_call>f${' '.repeat(3_000)}`],
      ['harmony', `<|channel|>${'x'.repeat(3_000)}`],
      ['glm', `<tool_call>f<arg_key>${'x'.repeat(3_000)}`],
    ] as const)
      assert.equal(joined(new ParsedFormat({ tools }).deltas([text])).content, text);
  });

  test('white space alone is content when there is nothing else, however much', () => {
    for (const text of ['\n', ' '.repeat(5_000)]) assert.equal(joined(hermes.deltas([text])).content, text);
  });

  test('a request without tools has its calls as content', () => {
    const text = 'See <tool_call>{"name": "f", "arguments": {}}</tool_call>.';
    assert.deepEqual(hermes.parse(text, { hasTools: false }), { content: text, reasoning: '', calls: [] });
  });
});

const reasoning: Readonly<Record<ReasoningFamily, { open: string; close: string; answer?: (text: string) => string }>> =
  {
    think: { open: '<think>\n', close: '\n</think>\n\n' },
    deepseek_r1: { open: '', close: '</think>' },
    mistral: { open: '[THINK]', close: '[/THINK]' },
    granite: { open: 'Here is my thought process: ', close: '\n\nHere is my response: ' },
    gemma4: { open: '<|channel>thought\n', close: '\n<channel|>' },
    harmony: {
      open: '<|channel|>analysis<|message|>',
      close: '<|end|><|start|>assistant',
      answer: (text) => `<|channel|>final<|message|>${text}<|return|>`,
    },
  };

describe.each(Object.entries(reasoning))('reasoning of %s', (name, { open, close, answer = (text) => text }) => {
  const format = new ParsedFormat({
    reasoning: name as ReasoningFamily,
    ...(name === 'harmony' ? {} : { tools: 'hermes' }),
  });
  const cases: readonly (readonly [string, Partial<Parsed>])[] = [
    [`${open}A fact.${close}${answer('An answer.')}`, { reasoning: 'A fact.', content: 'An answer.' }],
    [
      `${open}Two\n\nparts, 1 < 2.${close}${answer('{"a": "<b>"}')}`,
      { reasoning: 'Two\n\nparts, 1 < 2.', content: '{"a": "<b>"}' },
    ],
    [`${open}Zoë 東京 🚢${close}${answer('⚓')}`, { reasoning: 'Zoë 東京 🚢', content: '⚓' }],
    [`${open}${close}${answer('An answer.')}`, { content: 'An answer.' }],
    [`${open}A fact.${close}`, { reasoning: 'A fact.' }],
    [`${open}It breaks off`, { reasoning: 'It breaks off' }],
    [
      `${open}A <tool_call>{"name": "f", "arguments": {}}</tool_call> here${close}${answer('x')}`,
      { reasoning: 'A <tool_call>{"name": "f", "arguments": {}}</tool_call> here', content: 'x' },
    ],
    [
      `${open}A [THIN, a <thin, a Here is my, a <|chan${close}${answer('x')}`,
      { reasoning: 'A [THIN, a <thin, a Here is my, a <|chan', content: 'x' },
    ],
  ];
  test.each(cases)('%s', (text, expected) => {
    assert.deepEqual(format.parse(text), { content: '', reasoning: '', calls: [], ...expected });
  });

  test('calls follow it', () => {
    const call =
      name === 'harmony'
        ? '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
        : '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>';
    assert.deepEqual(format.parse(`${open}A fact.${close}${call}`), {
      content: '',
      reasoning: 'A fact.',
      calls: [['f', '{"a": 1}']],
    });
  });

  test('an answer may have none', () => {
    if (name === 'deepseek_r1') return;
    assert.deepEqual(format.parse(answer('Plain.')), { content: 'Plain.', reasoning: '', calls: [] });
  });
});

test('reasoning that the prompt opened goes on in the answer, also when the model opens it again', () => {
  for (const text of ['A fact.\n</think>\n\nAn answer.', '\n<think>\nA fact.</think>An answer.'])
    assert.deepEqual(hermes.parse(text, { prefix: '<think>' }), {
      content: 'An answer.',
      reasoning: 'A fact.',
      calls: [],
    });
});

test('the tags of Granite 3.3 around the answer are left out', () => {
  const format = new ParsedFormat({ reasoning: 'granite', tools: 'granite' });
  const text = '<think>A fact.</think>\n<response>An answer.</response>';
  assert.deepEqual(format.parse(text), { content: 'An answer.', reasoning: 'A fact.', calls: [] });
});

test('without a reasoning parser, gpt-oss answers with its analysis', () => {
  const format = new ParsedFormat({ tools: 'harmony' });
  const text = '<|channel|>analysis<|message|>A fact.<|end|><|start|>assistant<|channel|>final<|message|> An answer.';
  assert.equal(format.parse(text).content, 'A fact. An answer.');
});

test('a parser knows while it reads whether it reads reasoning', () => {
  const parser = new OutputFormat({ tools: 'hermes', reasoning: 'think', responseTemplate: undefined }).parser({
    tools: new Map<string, unknown>(),
    hasTools: true,
    isParallel: true,
    prefix: '',
    newId: () => 'x',
  });
  assert(parser);
  const seen = ['<think>', 'a', '</think>', 'b'].map((piece) => {
    parser.push(piece);
    return parser.isReasoning;
  });
  assert.deepEqual(seen, [true, true, false, false]);
});

test('random texts of markers: every split gives the same, and content has every character that is no format', () => {
  const random = new Random(11);
  const parts = [
    '<tool_call>',
    '</tool_call>',
    '<think>',
    '</think>',
    '{"name": "f", "arguments": {',
    '"a": 1',
    '}}',
    '\n',
    ' ',
    'x',
    '<',
    '"',
    '}',
    '{',
  ];
  for (let i = 0; i < 60; i++) {
    const text = Array.from({ length: 3 + random.below(8) }, () => parts[random.below(parts.length)]).join('');
    const { content, reasoning: thought, calls } = hermes.parse(text);
    const letters = (all: string): number => all.split('x').length - 1;
    assert.equal(
      letters(content) + letters(thought) + letters(calls.map(([, json]) => json).join('')),
      letters(text),
      text,
    );
  }
});

test('a table with a missing state, or with terminals that collide, is refused', () => {
  assert.throws(
    () => outputTable('content', { content: { text: 'content', on: { a: 'nowhere' } } }),
    /no state nowhere/,
  );
  assert.throws(
    () => outputTable('content', { content: { text: 'content', on: { a: 'content', ab: 'content' } } }),
    /begins another/,
  );
  assert.throws(() => outputTable('start', { start: { text: 'content' } }), /no state content/);
});
