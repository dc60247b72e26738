/** Bodies read where their prompts are encoded: as one that is read, and then encoded, and what is left to others. Budget: 10 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { BodyLimits } from '../../../services/router/api/parameter_failure.ts';
import type { ParsedBody } from '../../../services/router/api/body_kind.ts';
import { PromptTools, type ReadPromptBody } from '../../../services/router/api/prompt_tools.ts';
import { bodyKinds } from '../../../services/router/surfaces/registry.ts';
import { chatKind, completionKind } from '../../../services/router/surfaces/openai/body_kinds.ts';
import type { EmbeddingBody } from '../../../services/router/surfaces/openai/embedding_parameters.ts';
import type { ChatBody, CompletionBody } from '../../../services/router/surfaces/openai/parameters.ts';
import { readTextFiles } from '../../../shared/model/text_files.ts';
import { projectPath } from '../../support/project.ts';

const tools = new PromptTools(readTextFiles(projectPath('test/sim/model')), bodyKinds);
const limits: BodyLimits = { vocabSize: 64, maxModelLen: 100, isStrict: false };

/** A body of any kind. */
type AnyBody = ParsedBody & Partial<ChatBody & CompletionBody & EmbeddingBody>;

function read(
  kind: string,
  body: object,
  { maxCharacters = 1_000 } = {},
): ReadPromptBody<AnyBody> | Exclude<ReturnType<PromptTools['readPrompts']>, ReadPromptBody> {
  const bytes = Buffer.from(JSON.stringify(body));
  return tools.readPrompts({ kind, bytes, limits, model: 'own', maxCharacters });
}

function accepted(kind: string, body: object): ReadPromptBody<AnyBody> {
  const answer = read(kind, body);
  assert(!('refused' in answer), 'it is refused');
  return answer;
}

const messages = [{ role: 'user', content: 'abc' }];

test('a chat comes back as token ids, without its messages', () => {
  const { body, prompts, prefix } = accepted('chat', { messages, max_tokens: 3 });
  assert.equal(prefix, '');
  const bytes = Buffer.from(JSON.stringify({ messages, max_tokens: 3 }));
  const { template, ...rest } = chatKind.read(bytes, limits);
  assert.deepEqual(prompts, [tools.chatPrompt({ template, maxCharacters: 1_000 }).ids]);
  assert.equal(body.template?.messages.length, 0);
  assert.deepEqual({ ...body, template: undefined }, { ...rest, template: undefined });
});

test('prompts as text and as ids, in their order; their text comes back where it is echoed', () => {
  const prompt = ['abc', 'b'];
  const { body, prompts } = accepted('completion', { prompt, model: 'own' });
  const encode = (text: string): Uint32Array => tools.encode({ text, addSpecialTokens: true, maxCharacters: 1_000 });
  assert.deepEqual(prompts, prompt.map(encode));
  // Whether a prompt was a text is all that is left of it.
  assert.deepEqual(body.prompts, ['', '']);
  const ids = accepted('completion', { prompt: [[5, 6], [7]] });
  assert.deepEqual(ids.prompts, [Uint32Array.of(5, 6), Uint32Array.of(7)]);
  const echoed = accepted('completion', { prompt, echo: true });
  assert.deepEqual(echoed.body.prompts, prompt);
});

test('inputs of an embedding are encoded like prompts, and an empty one is refused by its place', () => {
  const { body, prompts } = accepted('embedding', { input: ['abc', [5, 6]], encoding_format: 'base64' });
  const encoded = tools.encode({ text: 'abc', addSpecialTokens: true, maxCharacters: 1_000 });
  assert.deepEqual(prompts, [encoded, Uint32Array.of(5, 6)]);
  assert(body.isBase64 === true && body.prompts?.every(({ length }) => length === 0) === true);
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
    [chatKind, { messages, model: 'another' }],
    [completionKind, { prompt: 'abc', model: 'another' }],
  ] as const) {
    const own = kind.read(Buffer.from(JSON.stringify(body)), limits);
    assert.deepEqual(accepted(kind.name, body), { body: own, prompts: undefined });
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

test('an invocation is a chat or a completion, by its keys', () => {
  const chat = accepted('invocation', { messages, max_tokens: 3, prompt: null });
  assert.deepEqual(chat, accepted('chat', { messages, max_tokens: 3 }));
  const completion = accepted('invocation', { prompt: ['abc', 'b'] });
  assert.deepEqual(completion, accepted('completion', { prompt: ['abc', 'b'] }));
  const neither = read('invocation', { input: 'abc' });
  assert('refused' in neither);
  assert.match(neither.refused.message, /neither messages.*nor prompt/);
});

test('a text that is cut after it is encoded may be longer than what fits the context', () => {
  const prompt = 'abc'.repeat(20);
  const most = { maxCharacters: 40 };
  const refused = read('completion', { prompt }, most);
  assert('failure' in refused && refused.failure.code === 'context_too_long');
  const cut = read('completion', { prompt, truncate_prompt_tokens: 4 }, most);
  assert('prompts' in cut);
  assert.deepEqual(cut.prompts, accepted('completion', { prompt }).prompts);
});

test('of a text that is much too long only the part near its kept end is encoded, with the same tokens', () => {
  const words = Array.from({ length: 4_000 }, (_, i) => 'ab ba abc c'.split(' ')[(i * 7) % 4]).join(' ');
  const ids = tools.encode({ text: words, addSpecialTokens: true, maxCharacters: Infinity });
  const most = { maxCharacters: 300 };
  for (const [side, kept] of [
    ['left', ids.slice(-50)],
    ['right', ids.slice(0, 50)],
  ] as const) {
    const body = { prompt: words, truncate_prompt_tokens: 50, truncation_side: side };
    const [near] = (read('completion', body, most) as ReadPromptBody).prompts ?? [];
    assert(near && near.length < 1_000, `${near?.length} of ${ids.length}`);
    assert.deepEqual(side === 'left' ? near.slice(-50) : near.slice(0, 50), kept);
    // Without a space there is nothing to begin at.
    const [solid] = (read('completion', { ...body, prompt: 'ab'.repeat(9_000) }, most) as ReadPromptBody).prompts ?? [];
    assert(solid && solid.length <= 601);
  }
});
