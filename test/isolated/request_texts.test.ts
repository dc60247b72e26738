/**
 * Prompts are kept nowhere: what each listener of requests holds after errors that quote prompts is searched for the quotes, in a snapshot
 * of the heap, which has private fields too. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { getHeapSnapshot } from 'node:v8';
import { test } from 'vitest';
import { RouterMetrics } from '../../services/router/metrics/metrics.ts';
import { History } from '../../services/router/observe/history.ts';
import { rowOf } from '../../services/router/observe/request_row.ts';
import type { RequestListener } from '../../services/router/record/request_listener.ts';
import { requestHeader, requestJson } from '../../services/router/record/request_json.ts';
import { RequestLog } from '../../services/router/record/request_log.ts';
import { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { opened, placedAt } from '../support/request_events.ts';
import { SpanRecorder } from '../support/span_recorder.ts';

/** Errors that quote a prompt, as the readers of bodies and the renderer of chats word them. */
const quoting: readonly ((quote: string) => string)[] = [
  (quote) => `the body is not JSON: Unexpected token x in "${quote}"`,
  (quote) => `prompt.1: token id ${quote.slice(-6)} is outside the vocabulary of 50`,
  (quote) => `input.0.type: ${quote} is not supported; use message, function_call`,
  (quote) => `messages.0.content: a block of type ${quote} is not supported here; use text`,
  (quote) => `response_format: the schema is no JSON: ${quote}`,
  (quote) => `messages: the chat template refuses them: ${quote}`,
];

/** Numbers that quotes end with; the quotes themselves exist only while {@link fail} runs. */
const NUMBERS = quoting.map((_, i) => 730_001 + i);

/** Ends a request with each error. */
function fail(log: RequestLog): void {
  for (const [i, messageOf] of quoting.entries()) {
    const failure = new Failure('invalid_request', messageOf(['quoted', 'prompt', NUMBERS[i]].join('-')));
    const trace = opened(log, `r${i}`, { model: 'm' });
    trace.emit({ kind: 'placing' });
    trace.emit(placedAt('d1'));
    trace.end('failed', 'error', failure);
  }
  // The runtime itself remembers the text that a pattern was last found in.
  assert(/another/.test('another text'));
}

/** Returns the quotes that some object of the heap holds. */
async function heldQuotes(): Promise<string[]> {
  const found = new Set<string>();
  const pattern = new RegExp([String.raw`(quoted.prompt.73000\d|id.73000\d.is)`].join(''), 'g');
  let rest = '';
  for await (const chunk of getHeapSnapshot() as AsyncIterable<Buffer>) {
    const text = rest + chunk.toString('latin1');
    for (const [quote] of text.matchAll(pattern)) found.add(quote);
    rest = text.slice(-64);
  }
  return [...found].sort();
}

test('no listener keeps or shows what an error quotes of a prompt; one that keeps the error itself would be found', async () => {
  const spans = new SpanRecorder();
  const { clock } = spans;
  const metrics = new RouterMetrics('m', silentLog, {
    nowMs: clock.nowMs,
    instances: () => ({ all: () => [], model: undefined }),
  });
  const history = new History({ clock, maxBytes: 1_000_000, onFull: () => undefined });
  const log = new RequestLog(clock, [metrics, history], 100, spans);
  fail(log);
  assert.deepEqual(await heldQuotes(), []);
  const shown = [
    ...log.all().map(({ record }) => [requestJson(record, 0), rowOf(record, 0), requestHeader(record, true)]),
    ...[spans.spans, await metrics.text(), history.read({ scope: 'cluster' })],
  ];
  for (const number of NUMBERS) assert(!JSON.stringify(shown).includes(String(number)));
  assert.equal(log.all().length, quoting.length);
  const kept: unknown[] = [];
  const keeping: RequestListener = { on: (record) => kept.push(record) };
  const careless = new RequestLog(clock, [keeping], 100);
  for (const number of NUMBERS)
    opened(careless, 'r').end(
      'failed',
      'error',
      new Failure('invalid_request', ['quoted', 'prompt', number].join('-')),
    );
  assert.equal((await heldQuotes()).length, NUMBERS.length, 'the search finds what is kept');
  assert.equal(kept.length > 0, true);
});
