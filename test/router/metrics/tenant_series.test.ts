/** Series by tenant: who has one, and what is counted when. Over the events of requests; e2e/audit has them over HTTP. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { EngineCharges } from '../../../services/router/metrics/engine_charges.ts';
import { MAX_TENANTS, OTHER, TenantSeries } from '../../../services/router/metrics/tenant_series.ts';
import { TOKEN } from '../../../services/router/record/request_events.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { placedAt, prefillAt } from '../../support/request_events.ts';
import { kindOf } from '../../support/request_kind.ts';

const step = { constantMs: 8, rowMs: 0.5, pairMs: 0.01, contextMs: 0.001, sequenceMs: 0.25 };

/** An instance with this step time, steps of 32 rows, and so many sequences that generate. */
function instanceAt(name: string, sequences: number): Pick<Instance, 'member' | 'load'> {
  const work = { step, chunkTokens: 32, generating: { sequences, contextTokens: 0 } } as InstanceWork;
  return { member: { name }, load: { work } } as Pick<Instance, 'member' | 'load'>;
}

class World {
  readonly clock = new SimulatedClock();
  listed: string[];
  instances = [instanceAt('d1', 4), instanceAt('p1', 0)];
  readonly series: TenantSeries;
  readonly log: RequestLog;

  constructor(...listed: string[]) {
    this.listed = listed;
    const charges = new EngineCharges(this.clock, () => this.instances);
    this.series = new TenantSeries(() => this.listed, charges);
    this.log = new RequestLog(this.clock, [this.series], 16);
  }

  open(tenant: string, promptTokens = 100, endpoint = '/v1/completions'): RequestTrace {
    const trace = this.log.open('r', kindOf(endpoint), { clientId: undefined, traceId: undefined, tenant });
    trace.emit({ kind: 'read', facts: { promptTokens } });
    return trace;
  }

  /** Returns the value of a series by the part of its name after `penstock_tenant_`, and its labels. */
  async value(name: string, labels: string): Promise<number | undefined> {
    const text = await this.series.registry.metrics();
    const line = text.split('\n').find((one) => one.startsWith(`penstock_tenant_${name}{${labels}} `));
    return line === undefined ? undefined : Number(line.slice(line.lastIndexOf(' ')));
  }

  async values(tenant: string): Promise<Record<string, number | undefined>> {
    const names = ['prompt_tokens_total', 'cached_tokens_total', 'output_tokens_total', 'throttled_total', 'waiting'];
    const values = await Promise.all(names.map((name) => this.value(name, `tenant="${tenant}"`)));
    return Object.fromEntries(names.map((name, i) => [name, values[i]]));
  }
}

const reportOf = (cachedTokens: number, computedTokens: number): Report => ({
  cachedTokens,
  fetchedTokens: 0,
  computedTokens,
  queueMs: 0,
  loadMs: 0,
  computeMs: 0,
  fetchedBytes: 0,
  links: [],
  sources: null,
});

test('64 tenants have series under their names, from the first scrape on; all others are one', async () => {
  const world = new World(...Array.from({ length: MAX_TENANTS + 6 }, (_, i) => `t${i}`));
  assert.equal(MAX_TENANTS, 64);
  assert.equal(await world.value('waiting', 'tenant="t63"'), 0);
  assert.equal(await world.value('waiting', 'tenant="t64"'), undefined);
  assert.equal(await world.value('waiting', `tenant="${OTHER}"`), undefined);
  for (const tenant of ['t0', 't64', 't69', 't70-is-not-listed']) world.series.answered(tenant, 200);
  assert.equal(await world.value('requests_total', 'tenant="t0",status="2xx"'), 1);
  assert.equal(await world.value('requests_total', `tenant="${OTHER}",status="2xx"`), 3);
  const text = await world.series.registry.metrics();
  assert.equal(text.match(/^penstock_tenant_waiting\{/gm)?.length, MAX_TENANTS + 1);
});

test('a tenant that leaves the file keeps its series, and a later one gets one while there is room', async () => {
  const world = new World('a', 'b');
  world.series.answered('a', 200);
  world.listed = ['b', 'c'];
  world.series.answered('c', 200);
  for (const tenant of ['a', 'c'])
    assert.equal(await world.value('requests_total', `tenant="${tenant}",status="2xx"`), 1);
  world.listed = Array.from({ length: 70 }, (_, i) => `n${i}`);
  assert.equal(await world.value('waiting', 'tenant="n60"'), 0);
  assert.equal(await world.value('waiting', 'tenant="n61"'), undefined);
  assert.equal(await world.value('requests_total', 'tenant="a",status="2xx"'), 1);
});

test('a tenant whose name is that of the others is counted with them', async () => {
  const world = new World('a', OTHER);
  world.series.answered(OTHER, 200);
  assert.equal(await world.value('requests_total', `tenant="${OTHER}",status="2xx"`), 1);
  const text = await world.series.registry.metrics();
  assert.equal(text.match(/^penstock_tenant_waiting\{/gm)?.length, 2);
});

test('a router without tenants has no series of them', async () => {
  const world = new World();
  world.open('').end('finished', 'stop');
  world.series.answered('', 200);
  assert(world.series.isEmpty);
  assert.doesNotMatch(await world.series.registry.metrics(), /^penstock_tenant/m);
});

test('answers are counted by status class, those with 429 apart', async () => {
  const world = new World('a');
  for (const status of [200, 200, 429, 404, 499, 503, 429]) world.series.answered('a', status);
  for (const [status, count] of Object.entries({ '2xx': 2, '4xx': 4, '5xx': 1 }))
    assert.equal(await world.value('requests_total', `tenant="a",status="${status}"`), count);
  assert.equal(await world.value('throttled_total', 'tenant="a"'), 2);
});

test('a prompt waits from its admission to its first token, or to its end without one; look-ups and further samples do not wait', async () => {
  const world = new World('a', 'b');
  const [served, refused] = [world.open('a'), world.open('a')];
  const sample = world.log.openSample('s', served);
  const lookup = world.open('a', 10, '/api/lookup');
  const embedded = world.open('b', 10, '/v1/embeddings');
  assert.equal(await world.value('waiting', 'tenant="a"'), 2);
  assert.equal(await world.value('waiting', 'tenant="b"'), 1);
  for (const trace of [served, sample, embedded]) {
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'firstToken', attempt: 1, report: reportOf(0, 10), isFirst: true });
  }
  assert.equal(await world.value('waiting', 'tenant="a"'), 1);
  assert.equal(await world.value('waiting', 'tenant="b"'), 0);
  // After a failure another attempt gives a first token, which is not the request's.
  served.emit(placedAt('d1'));
  served.emit({ kind: 'firstToken', attempt: 2, report: reportOf(0, 10), isFirst: false });
  refused.end('failed', 'error', new Error('no'));
  for (const trace of [served, sample, lookup, embedded]) trace.end('finished', 'stop');
  for (const tenant of ['a', 'b']) assert.equal(await world.value('waiting', `tenant="${tenant}"`), 0);
});

test("tokens are counted for the request's tenant: those of the answer as they come, those of the prompt once, and none of a refused one", async () => {
  const world = new World('a', 'b');
  const first = world.open('a');
  const sample = world.log.openSample('s', first);
  for (const trace of [first, sample]) {
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'firstToken', attempt: 1, report: reportOf(70, 30), isFirst: true });
    for (let n = 0; n < 3; n++) trace.emit(TOKEN);
  }
  assert.deepEqual(await world.values('a'), {
    prompt_tokens_total: 0,
    cached_tokens_total: 0,
    output_tokens_total: 6,
    throttled_total: 0,
    waiting: 0,
  });
  for (const trace of [first, sample]) trace.end('finished', 'stop');
  world.open('a').end('failed', 'error', new Error('no instance'));
  const none = {
    prompt_tokens_total: 0,
    cached_tokens_total: 0,
    output_tokens_total: 0,
    throttled_total: 0,
    waiting: 0,
  };
  assert.deepEqual(await world.values('a'), {
    ...none,
    prompt_tokens_total: 100,
    cached_tokens_total: 70,
    output_tokens_total: 6,
  });
  assert.deepEqual(await world.values('b'), none);
});

test('the engine is charged by rows, pairs, KV and an equal part of the constant: of a prefill at its end, of the own rows at the first token, of each token', async () => {
  const world = new World('a');
  const ms = (): Promise<number | undefined> => world.value('engine_ms_total', 'tenant="a"');
  const near = (actual: number | undefined, wanted: number): void => {
    assert(actual !== undefined && Math.abs(actual - wanted) < 1e-9, `${actual} is ${wanted}`);
  };
  const trace = world.open('a', 100);
  trace.emit(placedAt('d1'));
  const entry = { ...prefillAt('p1', 80), computedTokens: 60, outcome: 'running' };
  trace.emit({ kind: 'prefill', attempt: 1, index: 0, entry });
  near(await ms(), 0);
  trace.emit({ kind: 'prefill', attempt: 1, index: 0, entry: { ...entry, outcome: 'finished' } });
  // Rows [20, 80) in two steps that nothing else is in.
  const prefill = 2 * (8 + 0.25) + 60 * 0.5 + (60 * 20 + (60 * 61) / 2) * 0.01;
  near(await ms(), prefill);
  trace.emit({ kind: 'firstToken', attempt: 1, report: reportOf(80, 20), isFirst: true });
  // Rows [80, 99) in one step with four sequences that generate; the last row is the token's.
  const own = 8 / 5 + 0.25 + 19 * 0.5 + (19 * 80 + (19 * 20) / 2) * 0.01;
  near(await ms(), prefill + own);
  trace.emit(TOKEN);
  near(await ms(), prefill + own + 8 / 4 + 0.25 + 0.5 + 100 * 0.001);
  trace.emit(TOKEN);
  const two = 2 * (8 / 4 + 0.25 + 0.5) + (100 + 101) * 0.001;
  near(await ms(), prefill + own + two);
  // An instance whose heartbeats carry no step time costs nothing that is known.
  trace.emit(placedAt('d2'));
  trace.emit({ kind: 'firstToken', attempt: 2, report: reportOf(0, 102), isFirst: false });
  trace.emit(TOKEN);
  near(await ms(), prefill + own + two);
  trace.end('finished', 'stop');
  near(await ms(), prefill + own + two);
});

test('a hit costs nothing: of two equal prompts the second takes its last row alone', async () => {
  const world = new World('a', 'b');
  for (const [tenant, computed] of [
    ['a', 640],
    ['b', 1],
  ] as const) {
    const trace = world.open(tenant, 640);
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'firstToken', attempt: 1, report: reportOf(640 - computed, computed), isFirst: true });
    trace.emit(TOKEN);
    trace.end('finished', 'length');
  }
  const [cold, hit] = await Promise.all(['a', 'b'].map((one) => world.value('engine_ms_total', `tenant="${one}"`)));
  assert(cold !== undefined && hit !== undefined && cold > 100 * hit && hit > 0, `${cold} and ${hit}`);
});
