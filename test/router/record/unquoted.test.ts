/** Errors of the readers of bodies as the request log keeps them: without what they quote of a prompt. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { bodyKinds } from '../../../services/router/surfaces/registry.ts';
import type { BodyLimits } from '../../../services/router/api/parameter_failure.ts';
import { unquoted } from '../../../services/router/record/unquoted.ts';

const MARK = 'heliotrope';
const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };

function refusalOf(name: string, body: string): unknown {
  const kind = bodyKinds.find((one) => one.name === name);
  assert(kind);
  try {
    kind.read(Buffer.from(body), limits);
  } catch (error) {
    return error;
  }
  return assert.fail(`${body} is not refused`);
}

const user = { role: 'user', content: 'x' };
const block = { type: MARK, text: MARK };

test.each([
  ['completion', `{"p": ${MARK}}`, 'the body is not JSON'],
  ['response', JSON.stringify({ input: [{ type: block }] }), 'input.0.type: this is not supported; use message, '],
  ['response', JSON.stringify({ input: [user, { type: MARK }] }), 'input.1.type: this is not supported; use message, '],
  [
    'message',
    JSON.stringify({ max_tokens: 1, messages: [{ role: 'user', content: [block] }] }),
    'messages.0.content.0: a block of this type is not supported here; supported are text',
  ],
] as const)('an error of the body of a %s is kept without what it quotes', (kind, body, kept) => {
  const error = refusalOf(kind, body);
  assert.ok(messageOf(error).includes(MARK.slice(0, 6)), `${messageOf(error)}: nothing to leave out`);
  const { message, code } = unquoted(error) as Failure;
  assert.ok(message.startsWith(kept), message);
  assert.ok(!message.includes(MARK.slice(0, 6)), message);
  assert.equal(code, 'invalid_request');
});

test('a schema that is no JSON is not quoted; an error that quotes nothing stays the same object', () => {
  const ofSchema = new Failure(
    'invalid_request',
    `response_format: the schema is no JSON: Unexpected token 'h', "${MARK}"`,
  );
  assert.equal(messageOf(unquoted(ofSchema)), 'response_format: the schema is no JSON');
  const other = new Failure('overloaded', 'try again');
  assert.equal(unquoted(other), other);
  assert.equal(unquoted(undefined), undefined);
});

test('a call of an earlier answer that is no object is refused by its path', () => {
  const messages = [user, { role: 'assistant', content: 'a', tool_calls: [{ function: { name: 'f' } }, null] }];
  const error = refusalOf('chat', JSON.stringify({ messages }));
  assert.equal(messageOf(error), 'messages.1.tool_calls.1: a call is an object with id, type and function');
});
