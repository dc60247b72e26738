/** Prompts that are cut to a number of tokens. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ParameterFailure, type BodyLimits } from '../../../services/router/api/parameter_failure.ts';
import { readChatBody, readCompletionBody } from '../../../services/router/surfaces/openai/parameters.ts';
import { truncated } from '../../../services/router/api/truncation.ts';

const prompt = Uint32Array.from({ length: 50 }, (_, i) => i);
const room = { maxModelLen: 40, maxTokens: undefined, usualTokens: 16 };
const cut = (numTokens: number, side: 'left' | 'right' = 'left', more: Partial<typeof room> | object = {}): number[] =>
  Array.from(truncated(prompt, { numTokens, side }, { ...room, ...more }));

test('the last tokens stay, or the first ones when the right side is cut; a shorter prompt stays as it is', () => {
  assert.deepEqual(cut(3), [47, 48, 49]);
  assert.deepEqual(cut(3, 'right'), [0, 1, 2]);
  assert.deepEqual(Array.from(truncated(prompt.subarray(0, 2), { numTokens: 3, side: 'left' }, room)), [0, 1]);
  assert.equal(truncated(prompt, undefined, room), prompt);
});

test('-1 leaves room for the output: what the request asks for, else what is usual', () => {
  assert.equal(cut(-1).length, 40 - 16);
  assert.equal(cut(-1, 'left', { maxTokens: 30 }).length, 10);
  assert.equal(cut(-1, 'left', { maxTokens: 0 }).length, 39);
  // The context is too short for the output alone, which is refused later.
  assert.equal(cut(-1, 'left', { maxTokens: 100 }).length, 1);
});

test('more than the context has room for is refused by name', () => {
  assert.equal(cut(39).length, 39);
  for (const [numTokens, maxTokens] of [
    [40, undefined],
    [31, 10],
  ] as const) {
    assert.throws(
      () => cut(numTokens, 'left', { maxTokens }),
      (error) => error instanceof ParameterFailure && error.param === 'truncate_prompt_tokens',
    );
  }
});

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 8, isStrict: false };
const completion = (keys: object): ReturnType<typeof readCompletionBody> =>
  readCompletionBody(Buffer.from(JSON.stringify({ prompt: 'x', ...keys })), limits);

test('a body says how; zero and other sides are refused; a list of ids that is cut may be longer than the context', () => {
  assert.deepEqual(completion({ truncate_prompt_tokens: 4 }).truncation, { numTokens: 4, side: 'left' });
  const messages = [{ role: 'user', content: 'x' }];
  const chat = { messages, truncate_prompt_tokens: -1, truncation_side: 'right' };
  assert.deepEqual(readChatBody(Buffer.from(JSON.stringify(chat)), limits).truncation, {
    numTokens: -1,
    side: 'right',
  });
  assert.equal(completion({ truncation_side: 'left' }).truncation, undefined);
  for (const bad of [{ truncate_prompt_tokens: 0 }, { truncate_prompt_tokens: -2 }, { truncate_prompt_tokens: 1.5 }])
    assert.throws(() => completion(bad), /^.*truncate_prompt_tokens: /);
  assert.throws(() => completion({ truncation_side: 'top' }), /truncation_side: /);
  const ids = Array.from({ length: 9 }, (_, i) => i);
  assert.throws(() => completion({ prompt: ids }), /maximum context length is 8/);
  assert.equal(completion({ prompt: ids, truncate_prompt_tokens: 4 }).prompts[0]?.length, 9);
});
