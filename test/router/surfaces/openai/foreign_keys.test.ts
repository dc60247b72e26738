/** Keys of other servers' requests, and the bodies that bring them. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { isForeign } from '../../../../services/router/surfaces/openai/foreign_keys.ts';
import { chatSchema, completionSchema } from '../../../../services/router/surfaces/openai/parameter_schemas.ts';
import { readChatBody, readCompletionBody } from '../../../../services/router/surfaces/openai/parameters.ts';
import type { BodyLimits } from '../../../../services/router/api/parameter_failure.ts';
import { refusal } from '../../../support/failures.ts';

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };
const messages = [{ role: 'user', content: 'x' }];
const chat = (keys: object): ReturnType<typeof readChatBody> =>
  readChatBody(Buffer.from(JSON.stringify({ messages, ...keys })), limits);
const completion = (keys: object): { readonly ignored: readonly string[] } =>
  readCompletionBody(Buffer.from(JSON.stringify({ prompt: 'x', ...keys })), limits);

test.each<readonly [string, unknown]>([
  ['format', 'json'],
  ['thinking', { type: 'enabled', budget_tokens: 100 }],
  ['think', true],
  ['typical_p', 0.9],
  ['mirostat', 2],
  ['dry_multiplier', 0.8],
  ['xtc_probability', 0.5],
  ['lora_path', 'a'],
  ['images', ['data']],
  ['format', {}],
  ['thinking_budget', 100],
  ['no_repeat_ngram_size', 3],
  ['separate_reasoning', false],
  ['reasoning_format', 'none'],
  ['parse_tool_calls', false],
  ['response_schema', { type: 'object' }],
  ['options', { temperature: 0 }],
  ['enable_thinking', false],
  ['extra_body', { top_k: 1 }],
])('%s %j is refused by name at both endpoints', (key, value) => {
  for (const read of [chat, completion]) {
    const failure = refusal(() => read({ [key]: value }));
    assert.equal(failure.param, key);
    assert.match(failure.message, new RegExp(`^${key}: `));
  }
});

test.each<readonly [string, unknown]>([
  ['raw', false],
  ['samplers', []],
  ['separate_reasoning', true],
  ['reasoning_format', 'auto'],
  ['parse_tool_calls', true],
  ['thinking', { type: 'disabled', budget_tokens: 0 }],
  ['thinking', []],
  ['think', 'none'],
  ['reasoning', { effort: null }],
  ['reasoning', { effort: 'none' }],
  ['reasoning', { enabled: false }],
  ['n_predict', -1],
  ['structured_outputs', { json: null }],
  ['guided_choice', []],
  ['allowed_token_ids', []],
  ['grammar', null],
  ['grammar', ''],
  ['json_schema', null],
  ['regex', ''],
  ['ebnf', ''],
  ['format', ''],
  ['thinking', { type: 'disabled' }],
  ['typical_p', 1],
  ['mirostat', 0],
  ['lora', []],
  ['cache_prompt', true],
  ['id_slot', 3],
  ['keep_alive', '5m'],
  ['speculative.n_max', 4],
])('%s %j asks for nothing, and is not named as ignored', (key, value) => {
  assert.deepEqual(chat({ [key]: value }).ignored, []);
});

test('what goes with a prompt alone is refused by chats', () => {
  assert.equal(refusal(() => chat({ raw: true })).param, 'raw');
  assert.deepEqual(completion({ raw: true }).ignored, []);
});

test.each([
  ['n_predict', 5, 'max_tokens'],
  ['max_new_tokens', 5, 'max_tokens'],
  ['repeat_penalty', 1.1, 'repetition_penalty'],
  ['stop_sequences', ['a'], 'stop'],
])('%s is told its name here', (key, value, name) => {
  assert.match(refusal(() => chat({ [key]: value })).message, new RegExp(`is called ${name} here`));
});

test('what is of chats alone is refused by completions, not ignored', () => {
  for (const [key, value] of Object.entries({
    tools: [{}],
    tool_choice: 'required',
    chat_template: '{{ 1 }}',
    messages,
  }))
    assert.equal(refusal(() => completion({ [key]: value })).param, key);
  completion({ tools: [], tool_choice: 'auto', chat_template: null });
});

test('a key that no server knows is ignored and named', () => {
  assert.deepEqual(chat({ grammer: 'root' }).ignored, ['grammer']);
});

test('a parameter that an endpoint knows is no foreign key there', () => {
  const schemas = { chat: chatSchema, completion: completionSchema };
  for (const endpoint of ['chat', 'completion'] as const)
    for (const key of Object.keys(schemas[endpoint].shape)) assert.equal(isForeign(endpoint, key, 'x'), false, key);
});

test('what a parameter may be is said', () => {
  assert.match(
    refusal(() => chat({ stop: 5 })).message,
    /^stop: one text, or a list of at most 16, none of them empty$/,
  );
  assert.match(refusal(() => chat({ stop: ['a', ''] })).message, /cannot be an empty string/);
});

test('seeds keep all of their 64 bits; outside of them they are refused', () => {
  const seedIn = (body: string): bigint | undefined => {
    const { seedLow, seedHigh } = readChatBody(Buffer.from(body), limits).sampling;
    if (seedLow === undefined || seedHigh === undefined) return undefined;
    return BigInt.asIntN(64, (BigInt(seedHigh) << 32n) | BigInt(seedLow));
  };
  const seedOf = (text: string): bigint | undefined =>
    seedIn(`{"messages":${JSON.stringify(messages)},"seed":${text}}`);
  for (const seed of [2n ** 53n + 1n, 2n ** 63n - 1n, -(2n ** 63n), 9_007_199_254_740_993n, -1n, 0n])
    assert.equal(seedOf(String(seed)), seed);
  assert.equal(seedOf('1e3'), 1_000n);
  assert.equal(seedOf('null'), undefined);
  for (const bad of [String(2n ** 63n), String(-(2n ** 63n) - 1n), '1e30', '1.5', '"7"'])
    assert.match(refusal(() => seedOf(bad)).message, /^seed: a whole number/);
  assert.equal(
    seedIn(`{"messages":${JSON.stringify(messages)},"se\\u0065d":9007199254740993}`),
    9_007_199_254_740_993n,
  );
  for (const lost of ['9007199254740993.0', '9007199254740992.5', '9.007199254740993e15'])
    assert.match(
      refusal(() => seedOf(lost)).message,
      /^seed: write a large number as plain digits, without exponent or fraction$/,
    );
  // The last of two keys counts; a nested key, or one inside a text, does not.
  const body = `{"seed":1,"metadata":{"seed":9007199254740995},"user":"\\"seed\\":9007199254740997","messages":${JSON.stringify(messages)},"seed" : 9007199254740993 }`;
  assert.equal(seedIn(body), 9_007_199_254_740_993n);
});

test('roles are the template’s to know; what is no role, and media, are refused', () => {
  for (const role of ['control', 'ipython', 'document', 'developer', 'user']) {
    const { template } = readChatBody(Buffer.from(JSON.stringify({ messages: [{ role, content: 'x' }] })), limits);
    assert.equal(template.messages[0]?.['role'], role);
  }
  assert.match(refusal(() => chat({ messages: [{ content: 'x' }] })).message, /^messages\.0\.role: /);
  assert.match(refusal(() => chat({ messages: [{ role: '', content: 'x' }] })).message, /^messages\.0\.role: /);
  assert.match(refusal(() => chat({ messages: [{ role: 'user', content: 'x', images: ['a'] }] })).message, /images/);
});
