/** Bodies read where their prompts are encoded: as one that is read, and then encoded, and what is left to others. Budget: 10 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { readBody } from '../../../services/router/openai/body_kinds.ts';
import type { BodyLimits } from '../../../services/router/openai/parameter_failure.ts';
import { readPromptBody, type PromptBodyKind, type ReadPromptBody } from '../../../services/router/text/prompt_body.ts';
import { TokenizerTools } from '../../../services/router/text/tokenizer_worker.ts';
import { readTextFiles } from '../../../shared/model/text_files.ts';
import { projectPath } from '../../support/project.ts';

const tools = new TokenizerTools(readTextFiles(projectPath('test/sim/model')), Infinity);
const limits: BodyLimits = { vocabSize: 64, maxModelLen: 100, isStrict: false };

function read(
  kind: PromptBodyKind,
  body: object,
  { maxCharacters = 1_000 } = {},
): ReturnType<typeof readPromptBody> & object {
  const bytes = Buffer.from(JSON.stringify(body));
  return readPromptBody(tools, { kind, bytes, limits, model: 'own', maxCharacters });
}

function accepted(kind: PromptBodyKind, body: object): ReadPromptBody {
  const answer = read(kind, body);
  assert(!('refused' in answer), 'it is refused');
  return answer;
}

const messages = [{ role: 'user', content: 'abc' }];

test('a chat comes back as token ids, without its messages', () => {
  const { body, prompts, prefix } = accepted('chat', { messages, max_tokens: 3 });
  assert.equal(prefix, '');
  const bytes = Buffer.from(JSON.stringify({ messages, max_tokens: 3 }));
  const { template, ...rest } = readBody('chat', bytes, limits);
  assert.deepEqual(prompts, [tools.encodeChat({ template, maxCharacters: 1_000 })]);
  assert('template' in body && body.template.messages.length === 0);
  assert.deepEqual({ ...body, template: undefined }, { ...rest, template: undefined });
});

test('prompts as text and as ids, in their order; their text comes back where it is echoed', () => {
  const prompt = ['abc', 'b'];
  const { body, prompts } = accepted('completion', { prompt, model: 'own' });
  const encode = (text: string): Uint32Array => tools.encode({ text, addSpecialTokens: true, maxCharacters: 1_000 });
  assert.deepEqual(prompts, prompt.map(encode));
  assert('prompts' in body && body.prompts.length === 0);
  const ids = accepted('completion', { prompt: [[5, 6], [7]] });
  assert.deepEqual(ids.prompts, [Uint32Array.of(5, 6), Uint32Array.of(7)]);
  const echoed = accepted('completion', { prompt, echo: true });
  assert('prompts' in echoed.body);
  assert.deepEqual(echoed.body.prompts, prompt);
});

test('inputs of an embedding are encoded like prompts, and an empty one is refused by its place', () => {
  const { body, prompts } = accepted('embedding', { input: ['abc', [5, 6]], encoding_format: 'base64' });
  const encoded = tools.encode({ text: 'abc', addSpecialTokens: true, maxCharacters: 1_000 });
  assert.deepEqual(prompts, [encoded, Uint32Array.of(5, 6)]);
  assert('isBase64' in body && body.isBase64 && body.prompts.length === 0);
  const bare = accepted('embedding', { input: 'abc', add_special_tokens: false });
  const plain = tools.encode({ text: 'abc', addSpecialTokens: false, maxCharacters: 1_000 });
  assert.deepEqual(bare.prompts, [plain]);
  for (const [wrong, param] of [
    [{ input: '' }, 'input'],
    [{ input: ['abc', ''] }, 'input.1'],
    [{ input: [[5], []] }, 'input.1'],
    [{ input: 5 }, 'input'],
    [{ input: 'abc', dimensions: 2 }, 'dimensions'],
    [{ input: 'abc', messages }, 'messages'],
  ] as const) {
    const answer = read('embedding', wrong);
    assert('refused' in answer, JSON.stringify(wrong));
    assert.equal(answer.refused.param, param);
  }
});

test('what is for another model is read and left as it is', () => {
  for (const [kind, body] of [
    ['chat', { messages, model: 'another' }],
    ['completion', { prompt: 'abc', model: 'another' }],
  ] as const) {
    const own = readBody(kind, Buffer.from(JSON.stringify(body)), limits);
    assert.deepEqual(accepted(kind, body), { body: own, prompts: undefined });
  }
});

test('what is wrong with a body, or with its prompts, is a value', () => {
  assert.deepEqual(read('chat', { messages: [] }), {
    refused: { message: 'messages: a list of at least one message', param: 'messages', code: 'invalid_request' },
  });
  const tooLong = read('completion', { prompt: 'abc', request_id: 'mine' }, { maxCharacters: 2 });
  assert(!('refused' in tooLong));
  assert.equal(tooLong.failure?.code, 'context_too_long');
  assert.equal(tooLong.body.requestId, 'mine', 'whose request it is is known all the same');
});
