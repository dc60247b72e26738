/**
 * Tool calls of every family: texts as models write them, at every split into pieces; and texts that are no calls, which stay as they
 * are. Not here: whether a model writes its family's format. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { ToolFamily } from '../../../shared/text/output/tool_families.ts';
import { families, type Call } from './family_texts.ts';
import { ParsedFormat, type Parsed } from './support.ts';

const schemas = {
  tide: { type: 'object', properties: { place: { type: 'string' } } },
  order: {
    type: 'object',
    properties: {
      item: { type: 'string' },
      count: { type: 'integer' },
      price: { type: 'number' },
      gift: { type: ['boolean', 'null'] },
      note: { type: ['string', 'null'] },
      tags: { type: 'array' },
      to: { $ref: '#/$defs/address' },
    },
    $defs: { address: { type: 'object' } },
  },
};

const harbourMarkers = [
  '<tool_call>',
  '</tool_call>',
  '<think>',
  '[TOOL_CALLS]',
  '<|python_tag|>',
  '</parameter>',
  '<|"|>',
  '</arg_value>',
  '<|message|>',
  '}}',
];
const types = {
  item: 'rope',
  count: 42,
  price: -1.5,
  gift: true,
  note: null,
  tags: ['a', 1, [true]],
  to: { street: 'Quay', number: 7, more: {} },
};

/** Calls by what is special about them. */
const calls: Readonly<Record<string, readonly Call[]>> = {
  'one call': [['tide', { place: 'old mill' }]],
  'no arguments': [['tide', {}]],
  'values of all types': [['order', types]],
  'a text that looks like another type': [['order', { item: '42', note: 'true', count: 0 }]],
  'quotes, braces, backslashes and line ends': [['tide', { place: 'a "b" {c} [d] \\e, \'f\'\n  g: h;(i)' }]],
  Unicode: [['tide', { place: 'Zoë’s naïve café 東京 🚢⚓ e\u0301' }]],
  'markers in a text': [['tide', { place: harbourMarkers.join(' ') }]],
  'an empty text': [['tide', { place: '' }]],
  'two calls': [
    ['tide', { place: 'x' }],
    ['order', { item: 'rope', count: 3 }],
  ],
  'three calls of one tool': ['a', 'b', 'c'].map((place) => ['tide', { place }] as const),
};

describe.each(Object.entries(families))('%s', (name, { write, before, after, malformed, impossible, own = [] }) => {
  const format = new ParsedFormat({ tools: name as ToolFamily });
  const valuesOf = ({ calls: found, ...rest }: Parsed): object => ({
    ...rest,
    calls: found.map(([tool, text]) => [tool, JSON.parse(text) as unknown]),
  });
  /** The calls without strings that the format cannot have. */
  const possible = (wanted: readonly Call[]): readonly Call[] =>
    wanted.map(([tool, values]) => [
      tool,
      Object.fromEntries(
        Object.entries(values).map(([key, value]) => [
          key,
          typeof value === 'string' && impossible ? value.replace(new RegExp(impossible, 'g'), '') : value,
        ]),
      ),
    ]);

  test.each(Object.entries(calls))('%s', (_, given) => {
    const wanted = possible(given);
    const parsed = format.parse(write(wanted), { schemas });
    assert.deepEqual(valuesOf(parsed), { content: '', reasoning: '', calls: wanted });
  });

  test('text before and after calls is content', () => {
    for (const wanted of [calls['one call'] ?? [], calls['two calls'] ?? []]) {
      const { content, calls: found } = format.parse(before + write(wanted) + after, { schemas });
      assert.deepEqual(
        found.map(([tool]) => tool),
        wanted.map(([tool]) => tool),
      );
      assert.equal(content.replaceAll('\n', ''), 'Let me look.Done.');
    }
  });

  test('text without calls is content as it is', () => {
    const texts = [
      'Locker 42 opens with code 9071.',
      ' two  spaces\n\nand lines \n',
      'if (a < b) { return [a]; } // <b>',
      ' ',
      '🚢',
    ];
    for (const text of texts) {
      const written = name === 'harmony' ? `<|channel|>final<|message|>${text}<|return|>` : text;
      assert.deepEqual(format.parse(written, { schemas }), { content: text, reasoning: '', calls: [] });
    }
  });

  test.each(malformed)('no call: %s', (text) => {
    assert.deepEqual(format.parse(text, { schemas }), { content: text, reasoning: '', calls: [] });
  });

  test.each(own)('%s', (text, expected) => {
    assert.deepEqual(format.parse(text, { schemas }), { content: '', reasoning: '', calls: [], ...expected });
  });

  test('with parallel calls off, only the first is there', () => {
    const { calls: found } = format.parse(write(calls['three calls of one tool'] ?? []), {
      schemas,
      isParallel: false,
    });
    assert.deepEqual(valuesOf({ content: '', reasoning: '', calls: found }), {
      content: '',
      reasoning: '',
      calls: [['tide', { place: 'a' }]],
    });
  });
});
