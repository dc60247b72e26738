/** Constraints of requests: every spelling of every server that is known, what is refused, and that two are never mixed. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import type { TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import type { ConstraintWish } from '../../../../services/router/api/generation_body.ts';
import { readChatBody, readCompletionBody } from '../../../../services/router/surfaces/openai/parameters.ts';
import { refusal } from '../../../support/failures.ts';

const limits = { vocabSize: 100, maxModelLen: 50, isStrict: true };
const bytes = (body: object): Buffer => Buffer.from(JSON.stringify(body));
const completion = (more: object): ConstraintWish | undefined =>
  readCompletionBody(bytes({ prompt: [1], ...more }), limits).constraint;
const chat = (more: object): ConstraintWish | undefined =>
  readChatBody(bytes({ messages: [{ role: 'user', content: 'a' }], ...more }), limits).constraint;

const schema = { type: 'object', properties: { b: {}, a: { enum: [1, null] } } };
const schemaText = JSON.stringify(schema);

const spellings: readonly [object, Record<string, unknown>][] = [
  [{ response_format: { type: 'json_object' } }, { kind: 'json_object', param: 'response_format' }],
  [
    { response_format: { type: 'json_schema', json_schema: { name: 'x', schema, strict: true } } },
    { kind: 'json_schema', param: 'response_format.json_schema.schema', schema: schemaText },
  ],
  [
    { response_format: { type: 'json_object', schema } },
    { kind: 'json_schema', param: 'response_format.schema', schema: schemaText },
  ],
  [
    { structured_outputs: { json: schema } },
    { kind: 'json_schema', param: 'structured_outputs.json', schema: schemaText },
  ],
  [
    { structured_outputs: { json: schemaText, disable_any_whitespace: true } },
    { kind: 'json_schema', param: 'structured_outputs.json', schema: schemaText },
  ],
  [{ structured_outputs: { json_object: true } }, { kind: 'json_object', param: 'structured_outputs.json_object' }],
  [
    { structured_outputs: { regex: 'a+', json: null } },
    { kind: 'regex', param: 'structured_outputs.regex', pattern: 'a+' },
  ],
  [
    { structured_outputs: { choice: ['a', ''] } },
    { kind: 'choice', param: 'structured_outputs.choice', texts: ['a', ''] },
  ],
  [
    { structured_outputs: { grammar: 'root ::= "a"' } },
    { kind: 'grammar', param: 'structured_outputs.grammar', text: 'root ::= "a"' },
  ],
  [{ guided_json: schema }, { kind: 'json_schema', param: 'guided_json', schema: schemaText }],
  [{ guided_regex: '[ab]' }, { kind: 'regex', param: 'guided_regex', pattern: '[ab]' }],
  [{ guided_choice: ['x'] }, { kind: 'choice', param: 'guided_choice', texts: ['x'] }],
  [{ guided_grammar: 'root ::= "a"' }, { kind: 'grammar', param: 'guided_grammar', text: 'root ::= "a"' }],
  [{ json_schema: schema }, { kind: 'json_schema', param: 'json_schema', schema: schemaText }],
  [{ json_schema: {} }, { kind: 'json_schema', param: 'json_schema', schema: '{}' }],
  [{ regex: 'a|b' }, { kind: 'regex', param: 'regex', pattern: 'a|b' }],
  [{ ebnf: 'root ::= "a"' }, { kind: 'grammar', param: 'ebnf', text: 'root ::= "a"' }],
  [{ grammar: 'root ::= "a"' }, { kind: 'grammar', param: 'grammar', text: 'root ::= "a"' }],
  [{ grammar: { type: 'json', value: schema } }, { kind: 'json_schema', param: 'grammar.value', schema: schemaText }],
  [{ grammar: { type: 'regex', value: 'a' } }, { kind: 'regex', param: 'grammar.value', pattern: 'a' }],
];

test.each(spellings)('%j', (more, rule) => {
  for (const read of [completion, chat]) assert.deepEqual(read(more)?.rule, rule as TextRule);
});

test.each([
  {},
  { response_format: null },
  { response_format: { type: 'text' } },
  { structured_outputs: {} },
  { structured_outputs: { json: null } },
  { guided_json: null, guided_regex: '', guided_choice: [], guided_grammar: '' },
  { regex: '', ebnf: '', grammar: '', json_schema: '' },
  { allowed_token_ids: [], bad_words: '' },
  { bad_words: [] },
])('nothing: %j', (more) => {
  for (const read of [completion, chat]) assert.equal(read(more), undefined);
});

test('tokens and words', () => {
  assert.deepEqual(completion({ allowed_token_ids: [3, 99], bad_words: ['x', 'a b'] }), {
    rule: undefined,
    allowedTokenIds: [3, 99],
    badWords: ['x', 'a b'],
  });
  assert.deepEqual(chat({ allowed_token_ids: [3], guided_regex: 'a' })?.allowedTokenIds, [3]);
});

describe('refused', () => {
  const refused: readonly [object, string, RegExp][] = [
    [{ guided_regex: 'a', guided_json: schema }, 'guided_json', /guided_json and guided_regex/],
    [{ response_format: { type: 'json_object' }, regex: 'a' }, 'response_format', /response_format and regex/],
    [
      { structured_outputs: { json: schema, regex: 'a' } },
      'structured_outputs.json',
      /structured_outputs.json and structured_outputs.regex/,
    ],
    [{ response_format: { type: 'json_schema' } }, 'response_format.json_schema.schema', /is missing/],
    [
      { response_format: { type: 'json_schema', json_schema: { name: 'x' } } },
      'response_format.json_schema.schema',
      /is missing/,
    ],
    [{ response_format: { type: 'yaml' } }, 'response_format.type', /yaml is not supported/],
    [{ response_format: 'json' }, 'response_format', /./],
    [{ structured_outputs: { structural_tag: '{}' } }, 'structured_outputs.structural_tag', /not supported/],
    [{ structured_outputs: { yaml: 1 } }, 'structured_outputs.yaml', /not known/],
    [{ structured_outputs: { choice: [] } }, 'structured_outputs.choice', /./],
    [{ structured_outputs: { json: 5 } }, 'structured_outputs.json', /a JSON schema/],
    [{ guided_choice: [1] }, 'guided_choice.0', /./],
    [{ guided_json: [1] }, 'guided_json', /./],
    [{ grammar: { type: 'yaml', value: 'a' } }, 'grammar', /a text, or/],
    [{ allowed_token_ids: [1, 100, 2e6] }, 'allowed_token_ids', /100, 2000000 are outside/],
    [{ allowed_token_ids: [-1] }, 'allowed_token_ids.0', /./],
    [{ bad_words: ['a', ''] }, 'bad_words', /./],
    [{ bad_words: 'a' }, 'bad_words', /./],
  ];
  test.each(refused)('%j', (more, param, message) => {
    for (const read of [completion, chat]) {
      const failure = refusal(() => read(more));
      expect(failure.param?.startsWith(param), failure.param ?? '').toBe(true);
      assert.match(failure.message, message);
    }
  });
});
