/**
 * Tracing in one process: `traceparent`, sampling, spans sent to a collector, and spans of requests and calls by a clock of the test. Over
 * real processes: e2e/traces. Budget: 3 s.
 */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { newId } from '../../../shared/base/identity.ts';
import { silentLog, type Log } from '../../../shared/base/log.ts';
import { openTracing } from '../../../shared/base/tracing/otlp_tracing.ts';
import { readTraceparent, sampler, type Span, type SpanContext } from '../../../shared/base/tracing/tracing.ts';
import { CallSpan } from '../../../shared/node/traced_handlers.ts';
import type { RequestContext } from '../../../shared/protocol/messages.ts';
import { requestJson } from '../../../services/router/record/request_json.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { SpanRecorder } from '../../support/span_recorder.ts';
import { SpanReceiver } from '../../support/span_receiver.ts';
import { PATIENCE_MS } from '../../support/until.ts';
import { placedAt } from '../../support/request_events.ts';
import { kindOf } from '../../support/request_kind.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';

describe('traceparent', () => {
  test('is read with its flags', () => {
    assert.deepEqual(readTraceparent(`00-${TRACE}-${SPAN}-01`), { traceId: TRACE, spanId: SPAN, flags: 1 });
    assert.equal(readTraceparent(`00-${TRACE}-${SPAN}-00`)?.flags, 0);
    assert.equal(readTraceparent(`01-${TRACE}-${SPAN}-03-more`)?.flags, 3);
  });

  test.each([
    undefined,
    '',
    TRACE,
    `00-${TRACE}-${SPAN}`,
    `ff-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01-more`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
  ])('%s counts as absent', (text) => {
    assert.equal(readTraceparent(text), undefined);
  });
});

test('of the traces that begin here a fraction is recorded, by their id', () => {
  const ids = Array.from({ length: 4_000 }, () => newId() + newId());
  const count = (ratio: number): number => ids.filter(sampler(ratio)).length;
  assert.deepEqual([count(0), count(1)], [0, 4_000]);
  // Beyond six standard deviations, which are 27 of 4,000.
  assert(Math.abs(count(0.25) - 1_000) < 170);
  const chosen = ids.filter(sampler(0.1));
  assert(chosen.every(sampler(0.2)), 'what a small ratio takes a larger one takes too');
});

describe('a collector', () => {
  const options = { ratio: 1, role: 'decode', name: 'decode-7', clock: systemClock, newId, log: silentLog };
  const spanOf = (context: SpanContext, change: Partial<Span> = {}): Span => {
    // eslint-disable-next-line time/speed -- when the span began
    const nowMs = systemClock.nowMs();
    return {
      name: 'x',
      kind: 'server',
      context,
      parent: undefined,
      startMs: nowMs,
      endMs: nowMs + 1.5,
      attributes: {},
      ...change,
    };
  };

  test('gets spans that are recorded, with their times, at the latest at the end', async () => {
    const receiver = await SpanReceiver.open();
    const tracing = await openTracing({ ...options, endpoint: receiver.url });
    const context = tracing.begin(undefined);
    const attributes = { text: 'a', number: 2.5, none: undefined, list: ['b'] };
    tracing.record(spanOf(context, { attributes, parent: SPAN, error: 'lost' }));
    tracing.record(spanOf(tracing.begin({ traceId: TRACE, spanId: SPAN, flags: 0 })));
    await tracing.close();
    assert.equal(receiver.spans.length, 1);
    const [span] = receiver.spans;
    assert.deepEqual(
      [span?.service, span?.traceId, span?.spanId],
      ['penstock-decode', context.traceId, context.spanId],
    );
    assert.deepEqual([span?.parentSpanId, span?.kind, span?.isError], [SPAN, 2, true]);
    assert.deepEqual(Object.fromEntries(span?.attributes ?? []), { text: 'a', number: 2.5, list: ['b'] });
    assert(span && Math.abs(span.endMs - span.startMs - 1.5) < 0.001);
    receiver.close();
  });

  test('that takes no spans is named in one warning, and ends nothing', async () => {
    const warnings: string[] = [];
    const log = { ...silentLog, warn: (_: object, text: string) => warnings.push(text) } as unknown as Log;
    const refusing = createServer((_request, response) => response.writeHead(400).end());
    await new Promise<void>((done) => refusing.listen(0, '127.0.0.1', done));
    const endpoint = `http://127.0.0.1:${(refusing.address() as AddressInfo).port}`;
    const tracing = await openTracing({ ...options, log, endpoint });
    // More than a batch: each of them is refused.
    for (let i = 0; i < 1_000; i++) tracing.record(spanOf(tracing.begin(undefined)));
    await tracing.close();
    assert.deepEqual(
      warnings.filter((text) => text.startsWith('the collector')),
      ['the collector of --otlp-endpoint takes no spans: they are dropped'],
    );
    refusing.closeAllConnections();
    refusing.close();
  });
});

describe('spans that are lost', () => {
  test.each([
    ['by a full queue', '{}', 20_000, /^Dropped \d+ spans/],
    ['because a collector takes a part', '{"partialSuccess": {"rejectedSpans": "7"}}', 1_100, /Partial.*"7"/],
  ])('%s are told of once', async (_, answer, numSpans, reason) => {
    const reasons: string[] = [];
    const warn = (of: { readonly reason?: string }): unknown => of.reason !== undefined && reasons.push(of.reason);
    const log = { ...silentLog, warn };
    let numBatches = 0;
    let onSecond: (() => void) | undefined;
    const second = new Promise<void>((done) => (onSecond = done));
    const collector = createServer((request, response) => {
      request.resume().once('end', () => {
        if (++numBatches === 2) onSecond?.();
        response.writeHead(200, { 'content-type': 'application/json' }).end(answer);
      });
    });
    await new Promise<void>((done) => collector.listen(0, '127.0.0.1', done));
    const endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
    const tracing = await openTracing({
      ratio: 1,
      role: 'decode',
      name: 'decode-7',
      clock: systemClock,
      newId,
      log,
      endpoint,
    });
    const record = (): void => {
      const context = tracing.begin(undefined);
      tracing.record({ name: 'x', kind: 'server', context, parent: undefined, startMs: 0, endMs: 1, attributes: {} });
    };
    for (let i = 0; i < numSpans; i++) record();
    // A queue has room when its second batch is on the way, and tells how many spans it dropped when it takes one again.
    await second;
    record();
    await tracing.close();
    assert.equal(reasons.length, 1);
    assert.match(reasons[0] ?? '', reason);
    collector.closeAllConnections();
    collector.close();
  });
});

describe('a request at the router', () => {
  const names = { clientId: undefined, traceId: TRACE, parent: { traceId: TRACE, spanId: SPAN, flags: 1 } };

  test('has spans of its parts and of each attempt, below that of the client', () => {
    const recorder = new SpanRecorder();
    const log = new RequestLog(recorder.clock, [], 8, recorder);
    const trace = log.open('r1', kindOf('/v1/chat/completions'), names);
    const sampling = { temperature: 0.5, topP: 1, topK: 0 };
    trace.emit({ kind: 'read', facts: { model: 'harbour', sampling } });
    const { spans } = trace;
    assert(spans);
    const wait = (ms: number): number => (recorder.nowMs += ms);
    wait(3);
    trace.emit({ kind: 'placing' });
    wait(2);
    trace.emit(placedAt('decode-1', { reason: 'least load' }));
    const first = spans.wire;
    wait(20);
    trace.emit({ kind: 'attempt', attempt: 1, outcome: 'decode-1 was lost' });
    wait(5);
    trace.emit({ kind: 'placing' });
    wait(1);
    trace.emit(placedAt('decode-2', { reason: 'failover' }));
    const second = spans.wire;
    wait(10);
    trace.emit({ kind: 'firstToken', attempt: 2, report: undefined, isFirst: true });
    wait(30);
    trace.end('finished', 'stop');
    assert.deepEqual(recorder.times, [
      ...['tokenise 0-3', 'place 3-5', 'attempt 5-25', 'retry 25-30', 'place 30-31', 'attempt 31-71'],
      'chat harbour 0-71',
    ]);
    const request = recorder.spans.at(-1);
    assert.deepEqual([request?.parent, request?.context.traceId, request?.error], [SPAN, TRACE, undefined]);
    assert.deepEqual(request?.events, [{ name: 'first token', atMs: 1_041 }]);
    assert(request);
    const { attributes } = request;
    assert.deepEqual(
      [
        attributes['gen_ai.latency.time_to_first_token'],
        attributes['gen_ai.latency.e2e'],
        attributes['gen_ai.response.id'],
      ],
      [0.041, 0.071, 'r1'],
    );
    const attempts = recorder.spans.filter(({ name }) => name === 'attempt');
    assert.deepEqual(
      attempts.map(({ parent, error, context }) => [parent, error, context.spanId]),
      [
        [request.context.spanId, 'decode-1 was lost', first.parentSpan],
        [request.context.spanId, undefined, second.parentSpan],
      ],
    );
    assert.notEqual(first.parentSpan, second.parentSpan);
  });

  test('that fails says why, and its further prompts and samples are parts of its trace', () => {
    const recorder = new SpanRecorder();
    const log = new RequestLog(recorder.clock, [], 8, recorder);
    const none = { clientId: undefined, traceId: undefined };
    const first = log.open('r1', kindOf('/v1/completions'), none);
    const second = log.open('r2', kindOf('/v1/completions'), none, first);
    const sample = log.openSample('r3', first);
    for (const trace of [second, sample]) trace.end('finished', 'stop');
    first.end('failed', 'error', new Failure('overloaded', 'no room'));
    const [other, third, root] = recorder.spans;
    assert.deepEqual([other?.parent, third?.parent], [root?.context.spanId, root?.context.spanId]);
    assert.deepEqual([root?.parent, root?.error, root?.attributes['error.type']], [undefined, 'no room', 'overloaded']);
    assert.equal(requestJson(first.record, 0).trace_id, 'new');
  });

  test('has none without tracing', () => {
    assert.equal(new RequestLog(systemClock, [], 8).open('r', kindOf('/v1/completions'), names).spans, undefined);
  });
});

describe('a call at an instance', () => {
  const context: RequestContext = {
    requestId: 'r.1',
    tenant: '',
    priority: 0,
    timeoutMs: PATIENCE_MS,
    traceId: TRACE,
    router: '',
    placement: 0,
    expectedTokens: 0,
    parentSpan: SPAN,
    traceFlags: 1,
  };
  const report = {
    cachedTokens: 1,
    fetchedTokens: 2,
    computedTokens: 3,
    queueMs: 4,
    loadMs: 5,
    computeMs: 6,
    fetchedBytes: 7,
    links: [],
    sources: null,
  };

  /** Runs a Decode call with two tokens; returns the context that the handler saw. */
  function decode(recorder: SpanRecorder, given: RequestContext, error?: Error): RequestContext {
    const span = new CallSpan('decode', recorder, recorder.clock);
    const seen = span.begin({ context: given });
    recorder.nowMs += 20;
    span.token(report);
    recorder.nowMs += 10;
    span.token(undefined);
    span.error = error?.message;
    span.end();
    return seen.context;
  }

  test('has parts by the report of its engine, and is the parent of what it calls', () => {
    const recorder = new SpanRecorder();
    const seen = decode(recorder, context);
    assert.deepEqual(recorder.times, ['decode 0-30', 'queue 5-9', 'load 9-14', 'compute 14-20', 'generate 20-30']);
    const [span, ...parts] = recorder.spans;
    assert.deepEqual([span?.parent, span?.context.traceId, span?.kind], [SPAN, TRACE, 'server']);
    assert.equal(seen.parentSpan, span?.context.spanId);
    assert(parts.every(({ parent }) => parent === span?.context.spanId));
    assert.deepEqual(
      [
        span?.attributes['gen_ai.usage.output_tokens'],
        span?.attributes['penstock.tokens.fetched'],
        span?.attributes['gen_ai.request.id'],
      ],
      [2, 2, 'r.1'],
    );
  });

  test('that fails says why', () => {
    const recorder = new SpanRecorder();
    decode(recorder, context, new Error('the device is gone'));
    assert.equal(recorder.spans[0]?.error, 'the device is gone');
  });

  test('of a trace that is not recorded, or without one, leaves nothing and is not changed', () => {
    const recorder = new SpanRecorder();
    const unsampled = { ...context, traceFlags: 0 };
    assert.equal(decode(recorder, unsampled), unsampled);
    const plain: RequestContext = { ...context };
    Reflect.deleteProperty(plain, 'parentSpan');
    Reflect.deleteProperty(plain, 'traceFlags');
    assert.equal(decode(recorder, plain), plain);
    assert.deepEqual(recorder.spans, []);
  });
});
