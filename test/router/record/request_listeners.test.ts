/** One list of events, and each listener's view of the request: record, log, row, counts, metrics, spans, history and rates. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { RouterMetrics } from '../../../services/router/metrics/metrics.ts';
import { History } from '../../../services/router/observe/history.ts';
import { rowOf } from '../../../services/router/observe/request_row.ts';
import { PromptMisses } from '../../../services/router/record/miss_reasons.ts';
import {
  REASONING_TOKEN,
  TOKEN,
  type EndedEvent,
  type StepEvent,
} from '../../../services/router/record/request_events.ts';
import { requestHeader, requestJson } from '../../../services/router/record/request_json.ts';
import type { RequestListener } from '../../../services/router/record/request_listener.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestRecord } from '../../../services/router/record/request_record.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { silentLog } from '../../../shared/base/log.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { placedAt, prefillAt } from '../../support/request_events.ts';
import { kindOf } from '../../support/request_kind.ts';
import { SpanRecorder } from '../../support/span_recorder.ts';

const report: Report = {
  cachedTokens: 32,
  fetchedTokens: 64,
  computedTokens: 4,
  fetchedBytes: 1_000,
  links: [],
  queueMs: 1,
  loadMs: 20,
  computeMs: 5,
  sources: { device: 32, dram: 0, instance: 0, storeDram: 0, storeDisk: 0, handoff: 64 },
};
const read: StepEvent = {
  kind: 'read',
  facts: {
    model: 'm',
    promptTokens: 100,
    maxTokens: 8,
    targets: { ttftMs: 500, tbtMs: undefined },
    sampling: { temperature: 0.5, topP: 1, topK: 0 },
  },
};

/** Events with the milliseconds before each. */
type Script = readonly (readonly [ms: number, event: StepEvent | EndedEvent])[];

/** All listeners of a router, and one request of theirs. */
class World {
  readonly spans = new SpanRecorder();
  readonly metrics: RouterMetrics;
  readonly history: History;
  readonly log: RequestLog;
  readonly trace: RequestTrace;
  /** Phase after each event. */
  readonly phases: string[] = [];

  constructor(script: Script, endpoint = '/v1/chat/completions') {
    const { clock } = this.spans;
    this.metrics = new RouterMetrics('m', silentLog, {
      nowMs: clock.nowMs,
      instances: () => ({ all: () => [], model: undefined }),
    });
    this.history = new History({ clock, maxBytes: 1_000_000, onFull: () => undefined });
    this.log = new RequestLog(clock, [this.metrics, this.history], 8, this.spans);
    const names = { clientId: 'mine', traceId: undefined, address: 'c:1', key: 'ada', tenant: 'research' };
    this.trace = this.log.open('r', kindOf(endpoint), names);
    this.phases.push(this.record.phase);
    this.play(script);
  }

  get record(): RequestRecord {
    return this.trace.record;
  }

  get json(): ReturnType<typeof requestJson> {
    return requestJson(this.record, this.spans.nowMs);
  }

  get notes(): readonly string[] {
    return this.record.notes;
  }

  play(script: Script): void {
    for (const [ms, event] of script) {
      this.spans.nowMs += ms;
      if (event.kind === 'ended') this.trace.end(event.phase, event.finishReason, event.failure);
      else this.trace.emit(event);
      this.phases.push(this.record.phase);
    }
  }

  /** Value of a series of `/metrics`. */
  async metric(name: string, label = ''): Promise<number | undefined> {
    const lines = (await this.metrics.text()).split('\n');
    const line = lines.find((one) => one.startsWith(`${name}{`) && one.includes(label));
    return line === undefined ? undefined : Number(line.slice(line.lastIndexOf(' ') + 1));
  }

  /** Last value of a series of the history, of which a second is over. */
  rate(name: string): number | null | undefined {
    return this.history.read({ scope: 'cluster', series: [name] })?.series[name]?.at(-1);
  }

  tick(): void {
    this.spans.nowMs += 1_000;
    this.history.tick([]);
  }
}

const placed = placedAt('d1', { reason: 'least load', heldTokens: 96, isPrefilling: true });
const running = { ...prefillAt('p1', 0), expectedTokens: 64, outcome: 'running' };
const served: Script = [
  [2, read],
  [1, { kind: 'placing' }],
  [0, { kind: 'expected', outputTokens: 3 }],
  [2, placed],
  [0, { kind: 'expected', misses: new PromptMisses([{ start: 0, end: 100, reason: 'never_seen' }]) }],
  [0, { kind: 'prefill', attempt: 1, index: 0, entry: running, begins: true }],
  [9, { kind: 'prefill', attempt: 1, index: 0, entry: { ...running, readyTokens: 32 } }],
  [9, { kind: 'prefill', attempt: 1, index: 0, entry: prefillAt('p1', 64) }],
  [7, { kind: 'firstToken', attempt: 1, report, isFirst: true }],
  [0, TOKEN],
  [10, TOKEN],
  [0, REASONING_TOKEN],
  [30, TOKEN],
  [1, { kind: 'attempt', attempt: 1, outcome: 'finished' }],
  [0, { kind: 'ended', phase: 'finished', finishReason: 'stop', failure: undefined }],
];

test('the record of a request that is served', () => {
  const { json, record, phases, log } = new World(served);
  assert.deepEqual(
    phases.filter((phase, i) => phase !== phases[i - 1]),
    ['tokenizing', 'placing', 'prefilling', 'loading', 'decoding', 'finished'],
  );
  assert.deepEqual(json, {
    id: 'r',
    client_id: 'mine',
    client: 'c:1',
    key: 'ada',
    tenant: 'research',
    trace_id: 'new',
    endpoint: '/v1/chat/completions',
    sample_of: null,
    model: 'm',
    started_at: '1970-01-01T00:00:00.000Z',
    phase: 'finished',
    finish_reason: 'stop',
    error: null,
    reason: 'least load',
    prompt_tokens: 100,
    output_tokens: 3,
    tokens: { cached: 32, fetched: 64, computed: 68, computed_by_prefill: 64, computed_by_decode: 4 },
    sources: { device: 32, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 64, computed: 4 },
    miss_tokens: { never_seen: 68 },
    misses: [{ start: 32, end: 100, reason: 'never_seen' }],
    fetched_bytes: 1_000,
    ttft_ms: 30,
    total_ms: 71,
    ttft_parts_ms: { router: 5, failover: 0, queue: 1, load: 20, compute: 5, transport: -1 },
    predictions: { ttft_ms: null, tbt_ms: null, cached_tokens: null, output_tokens: { predicted: 3, real: 3 } },
    targets: { ttft_ms: 500, tbt_ms: null, deadline_ms: null },
    rejection: null,
    attempts: [
      {
        decode: 'd1',
        reason: 'least load',
        outcome: 'finished',
        placement: null,
        report: {
          cached_tokens: 32,
          fetched_tokens: 64,
          computed_tokens: 4,
          fetched_bytes: 1_000,
          queue_ms: 1,
          load_ms: 20,
          compute_ms: 5,
          sources: { device: 32, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 64 },
        },
        prefills: [{ prefill: 'p1', ready_tokens: 64, outcome: 'finished', report: null }],
      },
    ],
    notes: [],
  });
  assert.deepEqual([log.active, log.numClosed], [[], 1]);
  assert.deepEqual(
    log.all().map((ended) => requestJson(ended.record, 0)),
    [json],
    'the log has it as it was at its end',
  );
  assert.deepEqual(JSON.parse(requestHeader(record, true)), {
    id: 'r',
    decode: 'd1',
    prefill: 'p1',
    prompt_tokens: 100,
    tokens: json.tokens,
    ttft_ms: 30,
    attempts: 1,
    ttft_parts_ms: json.ttft_parts_ms,
  });
  // A tenant hears its tokens, and of no instance.
  const ofTenant = { id: 'r', prompt_tokens: 100, tokens: json.tokens };
  assert.deepEqual(JSON.parse(requestHeader(record, false)), ofTenant);
});

test('rows, counts, metrics, spans and rates of a request that is served', async () => {
  const world = new World([]);
  world.tick();
  world.play(served);
  const row = rowOf(world.record, 0);
  assert.deepEqual([row.decode, row.prefill, row.attempts, row.total_ms], ['d1', 'p1', 1, 1_071]);
  assert.deepEqual([row.ttft_ms, row.misses], [1_030, { never_seen: 68 }]);
  const { counts } = world.record;
  assert.deepEqual([counts.outputTokens, counts.reasoningTokens, counts.promptTokens], [3, 1, 100]);
  assert.equal(await world.metric('vllm:request_success_total', 'finished_reason="stop"'), 1);
  assert.equal(await world.metric('vllm:inter_token_latency_seconds_sum'), 0.04);
  assert.equal(await world.metric('vllm:inter_token_latency_seconds_count'), 2);
  assert.equal(await world.metric('vllm:generation_tokens_total', 'engine="d1"'), 3);
  assert.equal(await world.metric('vllm:request_params_max_tokens_sum'), 8);
  assert.equal(await world.metric('penstock_predicted_cached_tokens_total'), 96);
  assert.deepEqual(world.spans.times, [
    ...['tokenise 0-1003', 'place 1003-1005', 'attempt 1005-1071', 'chat m 0-1071'],
  ]);
  const { attributes = {}, events } = world.spans.spans.at(-1) ?? {};
  assert.deepEqual(events, [{ name: 'first token', atMs: 2_030 }]);
  assert.equal(attributes['gen_ai.request.max_tokens'], 8);
  assert.equal(attributes['gen_ai.request.temperature'], 0.5);
  assert.equal(attributes['gen_ai.usage.cache_read.input_tokens'], 96);
  world.spans.nowMs -= 71;
  world.tick();
  const rates = { requests_per_s: 1, failed_per_s: 0, output_tokens_per_s: 3, prompt_tokens_per_s: 100 };
  for (const [name, rate] of Object.entries({ ...rates, source_handoff: 64, source_computed: 4 }))
    assert.equal(world.rate(name), rate, name);
});

test('a lost attempt: what it says, what is told of it, and which attempt has the first token', async () => {
  const { json, record, spans } = new World([
    [2, read],
    [1, { kind: 'placing' }],
    [2, placedAt('d1')],
    [50, { kind: 'firstToken', attempt: 1, report, isFirst: true }],
    [0, TOKEN],
    [10, { kind: 'attempt', attempt: 1, outcome: 'd1 is lost' }],
    [0, { kind: 'lost', instance: 'd1', outputTokens: 1, message: 'd1 is lost' }],
    [1, { kind: 'placing' }],
    [0, { kind: 'waiting' }],
    [3, placedAt('d2', { reason: 'the only one' })],
    [0, { kind: 'missed', instance: 'd2', block: 3, reason: 'p1 is gone' }],
    [0, { kind: 'prefill', attempt: 2, index: 0, entry: { ...running, name: 'p2' }, again: 'too many wait' }],
    [6, { kind: 'prefill', attempt: 2, index: 0, entry: { ...running, outcome: 'failed: x' }, failure: 'x' }],
    [5, { kind: 'firstToken', attempt: 2, report: { ...report, computedTokens: 90 }, isFirst: false }],
    [0, TOKEN],
    [2, { kind: 'attempt', attempt: 2, outcome: 'stopped' }],
    [0, { kind: 'ended', phase: 'finished', finishReason: 'stop', failure: undefined }],
  ]);
  assert.deepEqual(json.notes, [
    '65.0 ms: d1 failed after 1 tokens: d1 is lost',
    '66.0 ms: waits for a decode instance',
    '69.0 ms: d2 misses blocks from 3: p1 is gone',
    '69.0 ms: prefill p2 is asked again: too many wait',
    '75.0 ms: prefill p1 failed at 0 tokens: x',
  ]);
  assert.deepEqual([json.ttft_ms, json.ttft_parts_ms?.failover, json.reason], [55, 0, 'the only one']);
  assert.deepEqual(
    json.attempts.map(({ outcome, report: own }) => [outcome, own?.computed_tokens]),
    [
      ['d1 is lost', 4],
      ['stopped', 90],
    ],
  );
  assert.equal(record.sinceTokenMs, 25);
  assert.deepEqual(spans.times, [
    ...['tokenise 0-3', 'place 3-5', 'attempt 5-65', 'retry 65-66', 'place 66-69', 'attempt 69-82', 'chat m 0-82'],
  ]);
  assert.deepEqual(
    spans.spans.filter(({ name }) => name === 'attempt').map(({ error }) => error),
    ['d1 is lost', undefined],
  );
  assert.equal(record.measured(82).tbtMs, undefined, 'two attempts served it');
});

test('a request that is refused for its targets: no attempt, an error, a failure a second', async () => {
  const world = new World([]);
  world.tick();
  const failure = new Failure('overloaded', 'no instance can answer in time');
  world.play([
    [2, read],
    [1, { kind: 'placing' }],
    [0, { kind: 'rejected', rejection: { reason: 'ttft', retryAfterMs: 70, prediction: undefined } as never }],
    [1, { kind: 'ended', phase: 'failed', finishReason: 'error', failure }],
  ]);
  const { json, spans } = world;
  assert.deepEqual([json.phase, json.error, json.attempts], ['failed', failure.message, []]);
  assert.deepEqual([json.rejection?.reason, json.rejection?.retry_after_ms], ['ttft', 70]);
  assert.equal(spans.spans.at(-1)?.error, failure.message);
  assert.equal(await world.metric('vllm:request_success_total'), undefined);
  world.spans.nowMs -= 4;
  world.tick();
  assert.deepEqual([world.rate('requests_per_s'), world.rate('failed_per_s')], [1, 1]);
});

test('after its end a request changes, but is told of once; a second end is none', async () => {
  const world = new World(served);
  world.trace.emit({ kind: 'prefill', attempt: 1, index: 1, entry: running });
  world.trace.end('failed', 'error', new Error('late'));
  assert.deepEqual(
    [world.json.phase, world.json.attempts[0]?.prefills.length, world.log.numClosed],
    ['finished', 2, 1],
  );
  assert.equal(await world.metric('vllm:request_success_total', 'finished_reason="stop"'), 1);
  assert.equal(world.spans.spans.filter(({ name }) => name === 'chat m').length, 1);
});

test('whoever waits for the prefills of a request waits until none runs', async () => {
  const world = new World([
    [0, placed],
    [0, { kind: 'prefill', attempt: 1, index: 0, entry: running }],
  ]);
  let isOver = false;
  const waiting = world.trace.prefillsEnded(new AbortController().signal).then(() => (isOver = true));
  await Promise.resolve();
  assert.equal(isOver, false);
  world.play([[0, { kind: 'prefill', attempt: 1, index: 0, entry: prefillAt('p1', 64) }]]);
  await waiting;
});

test('blocks that are missing bring another prefill: the request is prefilling again, until that has finished', () => {
  const again = { kind: 'prefill', attempt: 1, index: 1 } as const;
  const { phases } = new World([
    [0, placedAt('d1')],
    [1, { kind: 'missed', instance: 'd1', block: 0, reason: 'evicted' }],
    [0, { ...again, entry: running, begins: true }],
    [1, { ...again, entry: { ...running, readyTokens: 32 } }],
    [1, { ...again, entry: prefillAt('p1', 64) }],
    [1, { kind: 'firstToken', attempt: 1, report, isFirst: true }],
    [0, { ...again, entry: { ...running, readyTokens: 64 } }],
  ]);
  assert.deepEqual(phases.slice(1), [
    ...['loading', 'loading', 'prefilling', 'prefilling', 'loading', 'decoding', 'decoding'],
  ]);
});

test('a further sample counts no token of the prompt, and shows its size and its misses nowhere', async () => {
  const world = new World([[0, read]]);
  const sample = world.log.openSample('s', world.trace);
  for (const trace of [world.trace, sample]) {
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'firstToken', attempt: 1, report, isFirst: true });
    trace.emit(TOKEN);
    trace.end('finished', 'length');
  }
  const { counts, facts, sampleOf } = sample.record;
  assert.deepEqual([counts.promptTokens, counts.outputTokens, facts.promptTokens, sampleOf], [0, 1, 100, 'r']);
  assert.deepEqual([facts.maxTokens, facts.targets, facts.model], [undefined, undefined, 'm']);
  assert.equal(await world.metric('vllm:request_params_n_count'), 1);
  assert.equal(await world.metric('vllm:prompt_tokens_total'), 100);
  assert.equal(world.spans.spans.at(-1)?.parent, world.trace.spans?.context.spanId);
});

test('an embedding has a first token for its time, and no output', async () => {
  const world = new World([], '/v1/embeddings');
  world.tick();
  world.play([
    [0, read],
    [0, placed],
    [5, { kind: 'firstToken', attempt: 1, report, isFirst: true }],
    [0, { kind: 'attempt', attempt: 1, outcome: 'finished' }],
  ]);
  assert.equal(world.record.phase, 'prefilling');
  world.play([[0, { kind: 'ended', phase: 'finished', finishReason: 'stop', failure: undefined }]]);
  assert.equal(await world.metric('vllm:request_success_total', 'finished_reason="stop"'), 1);
  assert.equal(await world.metric('vllm:time_to_first_token_seconds_count'), undefined);
  world.spans.nowMs -= 5;
  world.tick();
  assert.deepEqual([world.rate('prompt_tokens_per_s'), world.rate('output_tokens_per_s')], [100, 0]);
});

test('a prompt alone has no output; a client that leaves ends its request; rewritten text and late ones are said', async () => {
  const explanation = { priceMs: 1, alternatives: [], isLate: true };
  const { json, record, ...world } = new World([
    [0, read],
    [0, { kind: 'read', facts: { maxTokens: 0 } }],
    [1, placedAt('d1', { explanation })],
    [0, { kind: 'rewritten', rewritten: { start: 40, sameTokens: 32, reusableTokens: 64 } }],
    [9, { kind: 'firstToken', attempt: 1, report: { ...report, fetchedTokens: 0, computedTokens: 68 }, isFirst: true }],
    [1, { kind: 'attempt', attempt: 1, outcome: 'cancelled' }],
    [0, { kind: 'ended', phase: 'cancelled', finishReason: 'abort', failure: undefined }],
  ]);
  assert.deepEqual(json.notes, ['1.0 ms: misses a target by its own work alone, and is served']);
  assert.deepEqual([json.output_tokens, json.phase, json.finish_reason], [0, 'cancelled', 'abort']);
  assert.deepEqual([json.lost_tokens, json.rewritten_from, record.counts.promptTokens], [32, 40, 100]);
  const text = await world.metrics.text();
  assert.match(text, /penstock_lost_cached_tokens_total\{model_name="m"\} 32\n/);
  assert.match(text, /vllm:request_params_max_tokens_sum\{[^}]*\} 0\n/);
  assert.equal(world.spans.spans.find(({ name }) => name === 'attempt')?.error, undefined);
});

test('a listener that throws keeps no request among the active ones', () => {
  const { clock } = new SpanRecorder();
  const failing: RequestListener = {
    on: (_, { kind }) => {
      if (kind === 'ended') throw new Error('a listener is broken');
    },
  };
  const log = new RequestLog(clock, [failing], 8);
  const trace = log.open('r', kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  assert.throws(() => {
    trace.end('finished', 'stop');
  }, /a listener is broken/);
  assert.deepEqual([log.active.length, log.all().length], [0, 1]);
});
