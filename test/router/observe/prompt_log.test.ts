/** The log of prompts is bounded, and without it not even the errors are kept that quote a prompt. Budget: 5 s. */
import { expect, test } from 'vitest';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { MAX_TEXT_BYTES, PromptLog } from '../../../services/router/observe/prompt_log.ts';
import { rowOf } from '../../../services/router/observe/request_row.ts';
import { logged } from '../../../services/router/api/logged_run.ts';
import { parseJson, readIds } from '../../../services/router/api/body_parts.ts';
import type { AnswerDelta } from '../../../services/router/api/prompt_output.ts';
import { requestJson } from '../../../services/router/record/request_json.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { pulled, pushed } from '../../support/pulled.ts';
import { kindOf } from '../../support/request_kind.ts';

test('the last 1,000 texts are kept, 16 KiB of each, and no half of a character', () => {
  const log = new PromptLog();
  log.add('0', 'first', 'answer');
  expect(log.of('0')).toEqual({ prompt: 'first', answer: 'answer', cut: [] });
  const long = `a${'é'.repeat(MAX_TEXT_BYTES)}`;
  const ids = Array.from({ length: 5_000 }, (_, i) => i);
  for (let i = 1; i <= 1_000; i++) log.add(String(i), long, ids);
  expect(log.of('0')).toBeUndefined();
  expect(log.of('1')).toEqual({
    prompt: `a${'é'.repeat(MAX_TEXT_BYTES / 2 - 1)}`,
    answer: ids.slice(0, 4_096),
    cut: ['of the prompt the first 16384 bytes are kept', 'of the answer the first 4096 token ids are kept'],
  });
});

test('a run that its client leaves is logged as far as it came', async () => {
  const log = new PromptLog();
  async function* run(): AsyncGenerator<AnswerDelta> {
    for (const text of ['one ', 'two ', 'three ']) {
      await Promise.resolve();
      yield { text, tokens: [], offset: 0, numTokens: 1, finish: undefined, stopReason: null, matchedStop: null };
    }
  }
  const decoder = {
    hasTokenizer: true,
    decode: ([ids]: readonly (readonly number[])[]) => Promise.resolve([String(ids)]),
  };
  const promptTokens = Uint32Array.of(5, 6);
  const left = pulled<AnswerDelta>((take) =>
    logged(decoder, log, { id: 'a', generation: { promptTokens } }, pushed(run()), take),
  );
  await left.next();
  await left.next();
  await left.return(undefined);
  expect(log.of('a')).toEqual({ prompt: '5,6', answer: 'one two ', cut: [] });
  const fromIds = { id: 'b', generation: { promptTokens, isFromIds: true } };
  const whole = pulled<AnswerDelta>((take) => logged(decoder, log, fromIds, pushed(run()), take));
  for (let isOver = false; !isOver;) isOver = (await whole.next()).done === true;

  expect(log.of('b')).toEqual({ prompt: [5, 6], answer: 'one two three ', cut: [] });
});

const LIMITS = { maxModelLen: 100, vocabSize: 50, isStrict: false };

test.each([
  ['a body that is no JSON', () => parseJson(Buffer.from('{"prompt": "secret" x')), 'the body is not JSON'],
  ['one that ends early', () => parseJson(Buffer.from('{"prompt": "secret')), 'the body is not JSON'],
  [
    'an id of a token',
    () => readIds([1, 777_777], LIMITS, 'prompt'),
    'prompt.1: a token id is outside the vocabulary of 50',
  ],
  [
    'a template',
    () => {
      throw new Failure('invalid_request', 'messages: the chat template refuses them: no role\nsecret', {
        cause: new Error('secret'),
      });
    },
    'messages: the chat template refuses them',
  ],
])('the request log has no text that the error of %s quotes', (_, refused, kept) => {
  let failure: unknown;
  try {
    refused();
  } catch (error) {
    failure = error;
  }
  const requests = new RequestLog(new SimulatedClock(), [], 10);
  const trace = requests.open('1', kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  trace.end('failed', 'error', failure);
  const { record } = trace;
  expect(rowOf(record, 0).error).toBe(kept);
  expect(requestJson(record, 0).error).toBe(kept);
  expect((record.failure as Error).cause).toBeUndefined();
  expect((record.failure as Failure).status).toBe(400);
});

test('an error that quotes nothing is kept as it is', () => {
  const requests = new RequestLog(new SimulatedClock(), [], 10);
  const trace = requests.open('1', kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  const failure = new Failure('overloaded', 'try again');
  trace.end('failed', 'error', failure);
  expect(trace.record.failure).toBe(failure);
});
