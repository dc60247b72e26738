/** Parameters of bodies and the fields of the sampling that they set. Ranges are not covered here. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { given } from '../../../../shared/base/given.ts';
import type { BodyLimits } from '../../../../services/router/api/parameter_failure.ts';
import { readMessagesBody } from '../../../../services/router/surfaces/anthropic/message_parameters.ts';
import { readChatBody, readCompletionBody } from '../../../../services/router/surfaces/openai/parameters.ts';
import {
  distributionSchemas,
  penaltySchemas,
} from '../../../../services/router/surfaces/openai/sampling_parameters.ts';
import { readResponseBody } from '../../../../services/router/surfaces/responses/response_parameters.ts';
import { refusal } from '../../../support/failures.ts';

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };
const messages = [{ role: 'user', content: 'x' }];
const bytesOf = (body: object): Buffer => Buffer.from(JSON.stringify(body));
const readers = {
  chats: (keys: object) => readChatBody(bytesOf({ messages, ...keys }), limits),
  completions: (keys: object) => readCompletionBody(bytesOf({ prompt: 'x', ...keys }), limits),
  responses: (keys: object) => readResponseBody(bytesOf({ input: 'x', ...keys }), limits),
  messages: (keys: object) => readMessagesBody(bytesOf({ max_tokens: 1, messages, ...keys }), limits),
};

const all = [
  ['temperature', 'temperature', 0.25],
  ['top_p', 'topP', 0.5],
  ['top_k', 'topK', 7],
  ['min_p', 'minP', 0.125],
  ['presence_penalty', 'presencePenalty', -0.5],
  ['frequency_penalty', 'frequencyPenalty', 1.5],
  ['repetition_penalty', 'repetitionPenalty', 1.25],
] as const;
const always = { biasTokens: [], biasValues: [], numLogprobs: -1, minTokens: 0 };

test('every parameter of the tables is in the list of this test', () => {
  const keys = Object.keys({ ...distributionSchemas, ...penaltySchemas });
  assert.deepEqual(
    keys,
    all.map(([key]) => key),
  );
});

test.each(['chats', 'completions', 'responses'] as const)('%s: each parameter sets its field, and no other', (api) => {
  for (const [key, field, value] of all) {
    const { sampling, ignored } = readers[api]({ [key]: value });
    assert.deepEqual(given(sampling), { [field]: value, ...always });
    assert.deepEqual(ignored, []);
  }
});

test('messages take those that Anthropic documents, and name the others as ignored', () => {
  for (const [key, field, value] of all) {
    const { sampling, ignored } = readers.messages({ [key]: value });
    const isTaken = ['temperature', 'top_p', 'top_k'].includes(key);
    assert.deepEqual(given(sampling), { ...(isTaken && { [field]: value }), ...always });
    assert.deepEqual(ignored, isTaken ? [] : [key]);
  }
  assert.equal(refusal(() => readers.messages({ top_k: -1 })).param, 'top_k');
  assert.equal(readers.chats({ top_k: -1 }).sampling.topK, -1);
});

test.each(['chats', 'completions', 'responses'] as const)(
  '%s: of wrong values the first of its schema is refused, not the first of the body',
  (api) => {
    const wrong = (...keys: string[]): object => Object.fromEntries(keys.map((key) => [key, 'wrong']));
    const refused = (...keys: string[]): string | null => refusal(() => readers[api](wrong(...keys))).param;
    assert.equal(refused('repetition_penalty', 'seed', 'min_p', 'temperature'), 'temperature');
    assert.equal(refused('repetition_penalty', 'seed', 'min_p'), 'min_p');
    assert.equal(refused('repetition_penalty', 'min_tokens', 'seed'), 'seed');
    assert.equal(refused('request_id', 'repetition_penalty', 'min_tokens'), 'min_tokens');
    assert.equal(refused('request_id', 'repetition_penalty'), 'repetition_penalty');
  },
);
