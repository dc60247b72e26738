/** The record of a request: where the time to its first token went, and its bounds. Simulated clock. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { RequestCounts } from '../../../services/router/record/request_counts.ts';
import type { RequestTrace } from '../../../services/router/record/request_log.ts';
import { RequestLog } from '../../../services/router/record/request_traces.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { kindOf } from '../../support/request_kind.ts';

const names = { clientId: undefined, traceId: undefined };
const report: Report = {
  ...{ cachedTokens: 0, fetchedTokens: 0, computedTokens: 9, fetchedBytes: 0, links: [], sources: null },
  ...{ queueMs: 30, loadMs: 200, computeMs: 50 },
};

test('the parts of a TTFT are what was spent: router, failover, queue, load, compute, and the way there and back', async () => {
  const clock = new SimulatedClock();
  const log = new RequestLog(clock, () => undefined, 8);
  const trace = log.open('r', kindOf('/v1/completions'), names);
  await clock.run(7);
  trace.placed(64);
  await clock.run(7 + 100);
  // Lost: all of the time until the next attempt is failover's.
  trace.placed(32);
  await clock.run(107 + 4 + 30 + 200 + 50 + 5);
  trace.firstToken(report);
  assert.deepEqual(trace.ttft, { router: 7, failover: 100, queue: 30, load: 200, compute: 50, transport: 9 });
  assert.equal(trace.ttftMs, 396);
});

test('an instance that claims more time than passed shows as a negative transport, not as a sum that fits', async () => {
  const clock = new SimulatedClock();
  const trace = new RequestLog(clock, () => undefined, 8).open('r', kindOf('/v1/completions'), names);
  trace.placed(0);
  await clock.run(100);
  trace.firstToken(report);
  assert.equal(trace.ttft?.transport, -180);
});

test('the last 512 requests and 20 slow ones are remembered where 512 are kept, and 64 notes and attempts of each (P1)', () => {
  const clock = new SimulatedClock();
  const closed: RequestTrace[] = [];
  const log = new RequestLog(clock, (trace) => closed.push(trace), 512);
  for (let i = 0; i < 600; i++) {
    const trace = log.open(`r${i}`, kindOf('/v1/completions'), names);
    trace.counts = new RequestCounts(1);
    for (let k = 0; k < 100; k++) {
      trace.note(`note ${k}`);
      trace.counts.begin('d1', 'again');
    }
    log.close(trace, 'finished', 'stop');
    log.close(trace, 'failed', 'twice');
  }
  const listed = log.list(10_000);
  assert.equal(listed.length, 532);
  assert.equal(listed[0]?.id, 'r599');
  assert.deepEqual([listed[0].notes.length, listed[0].attempts.length, listed[0].phase], [64, 64, 'finished']);
  assert.equal(closed.length, 600, 'each is told once');
});
