/** Errors by the API of their path, as answers and as the event that ends a stream. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { errorFormOf } from '../support.ts';
import { ParameterFailure } from '../../../../services/router/api/parameter_failure.ts';
import { Failure } from '../../../../shared/base/failure.ts';

const late = new Failure('deadline_exceeded', 'the request took over 5 ms');

/** Returns the name and the data of an event. */
function eventOf(path: string, error: unknown): readonly [name: string | undefined, data: unknown] {
  const [, name, data = ''] = /^(?:event: (.*)\n)?data: (.*)\n\n$/.exec(errorFormOf(path).event(error, 'r1')) ?? [];
  return [name, JSON.parse(data)];
}

test('a stream of a response that fails before its first event has an error event of its own', () => {
  const event = { type: 'error', code: 'deadline_exceeded', message: late.message, param: null, sequence_number: 0 };
  for (const path of ['/v1/responses', '/v1/responses?a=b', '/v1/responses/resp_1'])
    assert.deepEqual(eventOf(path, late), ['error', event]);
  const wrong = new ParameterFailure('input: is empty', 'input');
  const refused = { type: 'error', code: 'invalid_request', message: 'input: is empty', param: 'input' };
  assert.deepEqual(eventOf('/v1/responses', wrong), ['error', { ...refused, sequence_number: 0 }]);
});

test('an answer that is refused has an error object, as chats have it', () => {
  const bodyAt = (path: string): object => errorFormOf(path).body(late, 'r1');
  assert.deepEqual(bodyAt('/v1/responses'), bodyAt('/v1/chat/completions'));
  assert.deepEqual(bodyAt('/v1/responses'), {
    error: { message: late.message, type: 'server_error', param: null, code: 'deadline_exceeded' },
  });
});

test('other APIs keep their own events', () => {
  const [none, chat] = eventOf('/v1/chat/completions', late);
  assert.deepEqual([none, chat], [undefined, errorFormOf('/v1/chat/completions').body(late, 'r1')]);
  assert.deepEqual(eventOf('/v1/messages', late), ['error', errorFormOf('/v1/messages').body(late, 'r1')]);
  assert.notDeepEqual(eventOf('/v1/messages', late), eventOf('/v1/responses', late));
});
