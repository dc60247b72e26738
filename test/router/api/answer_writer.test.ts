/** Answers as their writers end them: whose counts are waited for, and who says that an answer cannot be finished. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import type { AnswerDelta } from '../../../services/router/api/prompt_output.ts';
import { writeAnswer, type AnswerWriters, type StreamWriter } from '../../../services/router/api/answer_writer.ts';
import type { EventWriter } from '../../../services/router/api/event_stream.ts';
import type { RequestScope } from '../../../services/router/api/request_scope.ts';
import { openaiEvents } from '../../../services/router/surfaces/openai/events.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { pushed } from '../../support/pulled.ts';
import { turn } from '../../support/until.ts';

const nothing = { tokens: [], offset: 0, numTokens: 1, finish: undefined, stopReason: null, matchedStop: null };

/** A stream of these deltas, by a writer that sends their texts; `over` says that no prefill runs any more. */
function streamed(
  deltas: () => AsyncGenerator<AnswerDelta>,
  writer: Partial<StreamWriter>,
): { written: string[]; failed: unknown[]; over: () => void; ended: Promise<void> } {
  const [written, failed]: [string[], unknown[]] = [[], []];
  let over: () => void = () => undefined;
  const prefillsEnded = new Promise<void>((resolve) => (over = resolve));
  const push = (text: string): boolean => written.push(text) > 0;
  const sink = { hasBegun: false, isBehind: false, begin: () => (sink.hasBegun = true), write: push, end: push };
  const signal = new AbortController().signal;
  const scope = { sink, signal, isGone: false, reason: (error: unknown) => error } as unknown as RequestScope;
  const metrics = { failed: (error: unknown) => failed.push(error) };
  const sample = { trace: { prefillsEnded: () => prefillsEnded }, generation: {} };
  const answer = {
    context: { clock: new SimulatedClock(), stalledReaderMs: 60_000, sseKeepAliveMs: 0, metrics },
    body: { isStream: true, sampling: { numLogprobs: -1 } },
    runs: [{ ...sample, first: sample, run: pushed(deltas()), echo: undefined }],
    stream: (events: EventWriter): StreamWriter => ({
      hasCounts: true,
      onDelta: ({ text }) => {
        events.send(text);
      },
      end: () => undefined,
      ...writer,
    }),
  } as unknown as AnswerWriters;
  const ended = writeAnswer(scope, answer, { events: openaiEvents, headers: () => ({}) });
  ended.catch(() => undefined);
  return { written, failed, over, ended };
}

async function* texts(): AsyncGenerator<AnswerDelta> {
  yield { ...nothing, text: 'a' };
  await turn();
  yield { ...nothing, text: 'b' };
}

const sent = ['data: "a"\n\n', 'data: "b"\n\n'];
const done = 'data: [DONE]\n\n';

test('a stream without counts ends while a prefill still runs; one with counts waits for it', async () => {
  const without = streamed(texts, { hasCounts: false });
  await without.ended;
  assert.deepEqual(without.written, [...sent, done]);
  const waiting = streamed(texts, {});
  for (let i = 0; i < 20; i++) await turn();
  assert.deepEqual(waiting.written, sent);
  waiting.over();
  await waiting.ended;
  assert.deepEqual(waiting.written, [...sent, done]);
});

test('a failure after the first event is said by the writer, if it can, and else thrown', async () => {
  const failure = new Failure('unavailable', 'x');
  const failing = async function* (): AsyncGenerator<AnswerDelta> {
    yield* texts();
    throw failure;
  };
  const plain = streamed(failing, {});
  await assert.rejects(plain.ended, failure);
  assert.deepEqual([plain.written, plain.failed], [sent, []]);
  const said: unknown[] = [];
  const saying = streamed(failing, { fail: (error) => said.push(error) });
  await saying.ended;
  assert.deepEqual([saying.written, said, saying.failed], [[...sent, done], [failure], [failure]]);
});

test('a failure before the first event is thrown, so that it has a status of its own', async () => {
  const failure = new Failure('unavailable', 'x');
  const failing = async function* (): AsyncGenerator<AnswerDelta> {
    await turn();
    throw failure;
  };
  const { ended, written } = streamed(failing, { fail: () => undefined });
  await assert.rejects(ended, failure);
  assert.deepEqual(written, []);
});
