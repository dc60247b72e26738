/** Series of requests by the engine that served them. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { silentLog } from '../../../shared/base/log.ts';
import { Registry } from 'prom-client';
import { RouterMetrics } from '../../../services/router/metrics/metrics.ts';
import { promptShares } from '../../../services/router/metrics/prompt_shares.ts';
import { RequestSeries } from '../../../services/router/metrics/request_series.ts';
import { CountsFold } from '../../../services/router/record/request_counts.ts';
import { TOKEN } from '../../../services/router/record/request_events.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { opened, placedAt, prefillAt } from '../../support/request_events.ts';

const report = (
  cachedTokens: number,
  fetchedTokens: number,
  computedTokens: number,
  sources: Report['sources'] = null,
): Report => ({
  cachedTokens,
  fetchedTokens,
  computedTokens,
  queueMs: 0,
  loadMs: 0,
  computeMs: 0,
  fetchedBytes: 0,
  links: [],
  sources,
});

/** Values of all samples of a text, by name and labels in alphabetical order. */
function valuesOf(text: string): Map<string, number> {
  return new Map(
    [...text.matchAll(/^([\w:]+)\{([^}]*)\} (\S+)$/gm)].map(([, name = '', labels = '', value = '']) => [
      `${name} ${labels.split(',').sort().join()}`,
      Number(value),
    ]),
  );
}

/** Serves one prompt of 100 tokens: 60 from a prefill, 12 cached, 28 computed by the instance that answers with 3 tokens. */
async function served(numSamples = 1, isFailed = false): Promise<Map<string, number>> {
  const clock = new SimulatedClock();
  const metrics = new RouterMetrics('m', silentLog, {
    nowMs: () => clock.nowMs(),
    instances: () => ({ all: () => [], model: undefined }),
  });
  const log = new RequestLog(clock, [metrics], 16);
  const first = opened(log, 'r', { promptTokens: 100, maxTokens: 7, numSamples });
  const traces = [first, ...Array.from({ length: numSamples - 1 }, (_, i) => log.openSample(`s${i}`, first))];
  for (const trace of traces) {
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'prefill', attempt: 1, index: 0, entry: prefillAt('p1', 60) });
    await clock.run(clock.nowMs() + 2_000);
    if (isFailed) {
      trace.end('failed', 'error', new Error('no'));
      continue;
    }
    const found = { device: 3, dram: 2, instance: 4, storeDram: 2, storeDisk: 1, handoff: 60 };
    trace.emit({ kind: 'firstToken', attempt: 1, report: report(12, 60, 28, found), isFirst: true });
    trace.emit(TOKEN);
    for (let i = 0; i < 2; i++) {
      await clock.run(clock.nowMs() + 30);
      trace.emit(TOKEN);
    }
    trace.end('finished', 'length');
  }
  return valuesOf(await metrics.text());
}

test('each token of a prompt is counted once, at the engine that had or computed it, and times at the one that generated', async () => {
  const values = await served();
  const of = (series: string, engine: string, label = ''): number | undefined =>
    values.get(`vllm:${series} ${[`engine="${engine}"`, 'model_name="m"', ...(label ? [label] : [])].sort().join()}`);
  assert.equal(of('prompt_tokens_total', 'p1'), 60);
  assert.equal(of('prompt_tokens_total', 'd1'), 40);
  assert.equal(of('prompt_tokens_by_source_total', 'p1', 'source="local_compute"'), 60);
  assert.equal(of('prompt_tokens_by_source_total', 'd1', 'source="local_compute"'), 28);
  const cached = ['device', 'host', 'p2p', 'disk', 'external_unspecified'].map(
    (source) => of('prompt_tokens_cached_by_source_total', 'd1', `source="${source}"`) ?? NaN,
  );
  assert.deepEqual(cached, [3, 2, 4, 1, 2]);
  const total = 12;
  assert.equal(of('prefix_cache_hits_total', 'd1'), 3);
  assert.equal(of('prompt_tokens_by_source_total', 'd1', 'source="external_kv_transfer"'), 9);
  assert.equal(of('prompt_tokens_cached_total', 'd1'), total);
  assert.equal((of('prefix_cache_hits_total', 'd1') ?? 0) + (of('external_prefix_cache_hits_total', 'd1') ?? 0), total);
  assert.equal(of('prefix_cache_queries_total', 'd1'), 40);
  assert.equal(of('generation_tokens_total', 'd1'), 3);
  assert.equal(of('inter_token_latency_seconds_count', 'd1'), 2);
  assert.equal(of('request_prefill_kv_computed_tokens_sum', 'd1'), 88);
  assert.equal(of('request_params_max_tokens_sum', 'd1'), 7);
  assert.equal(of('time_to_first_token_seconds_count', 'p1'), undefined);
  assert.equal(of('request_success_total', 'd1', 'finished_reason="length"'), 1);
  assert.equal(of('request_success_total', 'd1', 'finished_reason="error"'), 0);
});

test('bounds of buckets are written as Prometheus writes numbers, and each bucket has the values of those below', async () => {
  const values = await served();
  const bucket = (le: string): number | undefined =>
    values.get(`vllm:time_to_first_token_seconds_bucket engine="d1",le="${le}",model_name="m"`);
  assert.deepEqual(
    ['1.0', '2.5', '+Inf', '1'].map((le) => bucket(le)),
    [0, 1, 1, undefined],
  );
});

test('the prompt of several samples is counted once, with their number', async () => {
  const values = await served(3);
  assert.equal(values.get('vllm:prompt_tokens_total engine="d1",model_name="m"'), 40);
  assert.equal(values.get('vllm:request_params_n_sum engine="d1",model_name="m"'), 3);
  assert.equal(values.get('vllm:request_params_n_count engine="d1",model_name="m"'), 1);
  assert.equal(values.get('vllm:e2e_request_latency_seconds_count engine="d1",model_name="m"'), 3);
});

test('a request that failed before its first token counts as an error, and no token of its prompt', async () => {
  const values = await served(1, true);
  assert.equal(values.get('vllm:request_success_total engine="d1",finished_reason="error",model_name="m"'), 1);
  assert.equal(values.get('vllm:prompt_tokens_total engine="d1",model_name="m"'), 0);
});

test('what was computed twice after a failure is counted once', () => {
  const counts = new CountsFold();
  counts.apply({ kind: 'read', facts: { promptTokens: 100 } });
  for (const [i, decode] of ['d1', 'd2'].entries()) {
    counts.apply(placedAt(decode));
    counts.apply({ kind: 'prefill', attempt: i + 1, index: 0, entry: prefillAt(`p-${decode}`, 96) });
    counts.apply({ kind: 'firstToken', attempt: i + 1, report: report(0, 96, 4), isFirst: i === 0 });
  }
  const shares = promptShares(counts);
  assert.deepEqual(
    shares.map(({ engine, computed }) => [engine, computed]),
    [
      ['p-d1', 96],
      ['p-d2', 4],
      ['d2', 0],
    ],
  );
});

test('engines are bounded: the one that was seen first gives its place to another (P1)', async () => {
  const registry = new Registry();
  const series = new RequestSeries(registry);
  for (let i = 0; i < 1_100; i++) series.of(`e${i}`).inc('promptTokens', 1);
  const values = valuesOf(await registry.metrics());
  assert.equal([...values.keys()].filter((key) => key.startsWith('vllm:prompt_tokens_total')).length, 1_024);
  assert.equal(values.get('vllm:prompt_tokens_total engine="e1099"'), 1);
  assert.equal(values.has('vllm:prompt_tokens_total engine="e0"'), false);
});
