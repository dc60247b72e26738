/** The record of a request: where the time to its first token went, and its bounds. Simulated clock. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { PromptMisses } from '../../../services/router/record/miss_reasons.ts';
import { requestJson } from '../../../services/router/record/request_json.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestEvent } from '../../../services/router/record/request_events.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { opened, placedAt, prefillAt } from '../../support/request_events.ts';

const report: Report = {
  cachedTokens: 0,
  fetchedTokens: 0,
  computedTokens: 9,
  fetchedBytes: 0,
  links: [],
  sources: null,
  queueMs: 30,
  loadMs: 200,
  computeMs: 50,
};

test('the parts of a TTFT are what was spent: router, failover, queue, load, compute, and the way there and back', async () => {
  const clock = new SimulatedClock();
  const trace = opened(new RequestLog(clock, [], 8), 'r');
  await clock.run(7);
  trace.emit(placedAt('d1', { heldTokens: 64 }));
  await clock.run(7 + 100);
  // Lost: all of the time until the next attempt is failover's.
  trace.emit(placedAt('d2', { heldTokens: 32 }));
  await clock.run(107 + 4 + 30 + 200 + 50 + 5);
  trace.emit({ kind: 'firstToken', attempt: 2, report, isFirst: true });
  assert.deepEqual(trace.record.ttft, { router: 7, failover: 100, queue: 30, load: 200, compute: 50, transport: 9 });
  assert.equal(trace.record.ttftMs, 396);
  assert.equal(trace.record.expected.heldTokens, 64, 'later placements follow a failure');
});

test('an instance that claims more time than passed shows as a negative transport, not as a sum that fits', async () => {
  const clock = new SimulatedClock();
  const trace = opened(new RequestLog(clock, [], 8), 'r');
  trace.emit(placedAt('d1'));
  await clock.run(100);
  trace.emit({ kind: 'firstToken', attempt: 1, report, isFirst: true });
  assert.equal(trace.record.ttft?.transport, -180);
});

test('the last 512 requests and 20 slow ones are remembered where 512 are kept, and 64 notes and attempts of each (P1)', () => {
  const clock = new SimulatedClock();
  let numEnded = 0;
  const counting = { on: (_: unknown, { kind }: RequestEvent) => (numEnded += kind === 'ended' ? 1 : 0) };
  const log = new RequestLog(clock, [counting], 512);
  for (let i = 0; i < 600; i++) {
    const trace = opened(log, `r${i}`);
    for (let k = 0; k < 100; k++) {
      trace.emit({ kind: 'missed', instance: 'd1', block: k, reason: 'evicted' });
      trace.emit(placedAt('d1'));
      for (let index = 0; index < 3; index++)
        trace.emit({ kind: 'prefill', attempt: k + 1, index: 8 * index, entry: prefillAt('p1', 1) });
    }
    trace.end('finished', 'stop');
    trace.end('failed', 'twice');
  }
  const listed = log.list(10_000);
  assert.equal(listed.length, 532);
  assert.equal(listed[0]?.id, 'r599');
  const { notes, counts, phase } = listed[0].record;
  assert.deepEqual([notes.length, counts.attempts.length, phase], [64, 64, 'finished']);
  assert.equal(counts.attempts[0]?.prefills.length, 2, 'one beyond the bound is not kept');
  assert.equal(numEnded, 600, 'each is told once');
});

test('beyond 64 MiB the oldest go first, however few they are (P1)', () => {
  const log = new RequestLog(new SimulatedClock(), [], 1_000);
  const reason = 'x'.repeat(2 ** 15);
  for (let i = 0; i < 48; i++) {
    const trace = opened(log, `r${i}`);
    for (let k = 0; k < 64; k++) trace.emit({ kind: 'missed', instance: 'd1', block: k, reason });
    trace.end('failed', 'error', new Error('broken'));
  }
  const kept = log.all();
  assert.equal(kept.length, 31, 'of two MiB and some each');
  assert.deepEqual([kept[0]?.id, kept.at(-1)?.id], ['r47', 'r17']);
  assert.equal(kept.at(-1)?.record.notes.length, 64);
});

test('a record of an ended request is what it was, and knows what ends after it', () => {
  const clock = new SimulatedClock();
  const log = new RequestLog(clock, [], 8);
  const trace = opened(log, 'r', { model: 'm', promptTokens: 9, targets: { ttftMs: 5, tbtMs: undefined } });
  const misses = new PromptMisses([{ start: 0, end: 9, reason: 'tail' }]);
  trace.emit({ kind: 'expected', outputTokens: 7, misses });
  const prediction = { ttftMs: 1.5, waitMs: 0, tbtMs: 1, totalMs: 9, cachedTokens: 0 };
  const alternatives = [{ decode: 'd2', run: 0, queueLength: 1, priceMs: 3, parts: { wait: 2 }, prediction }];
  trace.emit(placedAt('d1', { explanation: { priceMs: 2, prediction, alternatives, policy: 'priced' } }));
  trace.emit({ kind: 'prefill', attempt: 1, index: 0, entry: { ...prefillAt('p1', 4), outcome: 'running' } });
  trace.emit({ kind: 'firstToken', attempt: 1, report, isFirst: true });
  trace.end('failed', 'error', new Error('d1 is “lost”'));
  const shown = (): unknown => requestJson(log.all()[0]!.record, 1_000);
  const atEnd = requestJson(trace.record, 1_000);
  assert.deepEqual(shown(), atEnd);
  trace.emit({ kind: 'prefill', attempt: 1, index: 0, entry: prefillAt('p1', 9) });
  assert.deepEqual(shown(), requestJson(trace.record, 1_000));
  assert.notDeepEqual(shown(), atEnd);
});
