/** Series over time, by a clock that the test sets. Budget: 5 s. */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { test } from 'vitest';
import { Instance } from '../../shared/placement/instance.ts';
import { History } from '../../services/router/observe/history.ts';
import { LatencyHistogram } from '../../services/router/observe/latency_histogram.ts';
import { TOKEN } from '../../services/router/record/request_events.ts';
import { RequestLog } from '../../services/router/record/request_log.ts';
import type { InstanceLoad, Role } from '../../shared/protocol/membership.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { opened, placedAt } from '../support/request_events.ts';
import { kindOf } from '../support/request_kind.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
const T0 = 1_700_000_000_000;
const MIB = 2 ** 20;

class World {
  nowMs = 0;
  readonly full: string[] = [];
  readonly history: History;
  readonly clock = { nowMs: () => this.nowMs, wallMs: () => T0 + this.nowMs };

  constructor(maxBytes = 64 * MIB) {
    this.history = new History({ clock: this.clock, maxBytes, onFull: (scope) => this.full.push(scope) });
  }

  tick(instances: readonly Instance[], ms = 1_000): void {
    this.nowMs += ms;
    this.history.tick(instances);
  }

  series(scope: string, name: string, question: object = {}): readonly (number | null)[] | undefined {
    return this.history.read({ scope, series: [name], ...question })?.series[name];
  }
}

function node(name: string, epoch = 'e', role: Role = 'decode'): Instance {
  const member = { name, role, address: `${name}:1`, pid: 1, epoch };
  return new Instance({ member, protocolVersion: 1 }, 0, undefined, role === 'store' ? undefined : 'm');
}

function heard(instance: Instance, hits: number, change: Partial<InstanceLoad> = {}): void {
  const dram = { blocks: 2, bytes: 64, capacityBytes: 128, hits, misses: 0, evictions: hits, dedupFactor: 1 };
  const load = { running: 2, waiting: 1, preemptions: 0, lastStepMs: 7, isDraining: false, tiers: { dram }, ...change };
  instance.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r', 0);
}

test('a counter is a rate, and one that restarts gives no negative one', () => {
  const world = new World();
  const first = node('d1');
  heard(first, 1_000);
  world.tick([first]);
  heard(first, 1_030);
  world.tick([first]);
  heard(first, 1_010);
  world.tick([first]);
  const again = node('d1', 'e2');
  heard(again, 0);
  world.tick([again]);
  heard(again, 5);
  world.tick([again], 500);
  world.tick([again], 500);
  assert.deepEqual(world.series('cluster', 'dram_evictions_per_s'), [0, 30, 0, 0, 5]);
  assert.deepEqual(world.series('role:decode', 'running'), [2, 2, 2, 2, 2]);
  assert.deepEqual(world.series('model:m', 'dram_capacity_bytes'), [128, 128, 128, 128, 128]);
  heard(again, 55);
  for (let i = 0; i < 5; i++) world.tick([again]);
  assert.deepEqual(world.series('node:d1', 'dram_hits_per_s'), [0, 10]);
});

test('requests are counted by second for the cluster and their model, with times and sources', () => {
  const world = new World();
  const never = (): Promise<void> => Promise.reject(new Error('not used'));
  const log = new RequestLog({ ...world.clock, sleep: never, turn: never }, [world.history], 8);
  const instance = node('d1');
  world.tick([instance]);
  const trace = opened(log, 'r', { model: 'm', promptTokens: 100 });
  const times = { queueMs: 0, loadMs: 0, computeMs: 0, fetchedBytes: 0, links: [], sources: null };
  const report = { cachedTokens: 64, fetchedTokens: 0, computedTokens: 36, ...times };
  trace.emit(placedAt('d1'));
  world.nowMs += 200;
  trace.emit({ kind: 'firstToken', attempt: 1, report, isFirst: true });
  trace.emit(TOKEN);
  for (let i = 0; i < 4; i++) {
    world.nowMs += 20;
    trace.emit(TOKEN);
  }
  world.tick([instance], 720);
  trace.end('failed', 'error', new Error('x'));
  world.tick([instance]);
  for (const scope of ['cluster', 'model:m']) {
    const of = (name: string): unknown => world.series(scope, name);
    assert.deepEqual(of('prompt_tokens_per_s'), [0, 100, 0]);
    assert.deepEqual(of('output_tokens_per_s'), [0, 5, 0]);
    assert.deepEqual(of('source_device'), [0, 64, 0]);
    assert.deepEqual(of('source_computed'), [0, 36, 0]);
    assert.deepEqual(of('hit_ratio'), [null, 0.64, null]);
    assert.deepEqual(of('requests_per_s'), [0, 0, 1]);
    assert.deepEqual(of('failed_per_s'), [0, 0, 1]);
    const [none, ttft] = world.series(scope, 'ttft_ms_p95') ?? [];
    assert.equal(none, null);
    assert.ok(Math.abs((ttft ?? 0) - 200) < 10, String(ttft));
  }
  assert.equal(world.history.now['requests_per_s'], 1);
  assert.equal(world.series('role:decode', 'requests_per_s'), undefined);
});

test('a day is there by the minute, 15 minutes by the second, and a stop of the router is a hole', () => {
  const world = new World();
  const instance = node('d1');
  heard(instance, 0);
  for (let i = 0; i < 600; i++) world.tick([instance]);
  world.tick([instance], 301_000);
  for (let i = 0; i < 600; i++) world.tick([instance]);
  const fine = world.history.read({ scope: 'cluster', series: ['running'] });
  assert.equal(fine?.step_ms, 1_000);
  assert.equal(fine.series['running']?.length, 900);
  assert.equal(fine.start_at, T0 + world.nowMs - 899_000);
  assert.equal(fine.series['running'].filter((value) => value === null).length, 299);
  const coarse = world.history.read({ scope: 'cluster', series: ['running'], from: T0 });
  assert.equal(coarse?.step_ms, 60_000);
  assert.deepEqual(coarse.series['running']?.slice(0, 2), [2, 2]);
  const wide = world.history.read({
    scope: 'cluster',
    series: ['running'],
    from: T0 + world.nowMs - 100_000,
    step: 7_000,
  });
  assert.equal(wide?.step_ms, 7_000);
  assert.equal((wide.start_at - T0) % 7_000, 0, 'the same moments again in the next answer');
  const until = world.series('cluster', 'running', { from: T0 + world.nowMs - 9_000, to: T0 + world.nowMs - 5_000 });
  assert.equal(until?.length, 5);
  assert.equal(world.history.read({ scope: 'role:store' }), undefined);
});

test('the minute in which the router was stopped keeps its values, however long the stop; a step of any length has one', () => {
  const world = new World();
  const instance = node('d1');
  for (let second = 0; second < 65; second++) world.tick([instance]);
  world.tick([instance], 300_000);
  world.tick([instance], 60_000);
  const minutes = { step: 60_000 };
  assert.deepEqual(world.series('cluster', 'instances', minutes), [1, 1, null, null, null, null, 1]);
  assert.deepEqual(world.series('cluster', 'instances', { step: 86_400_000 }), [1]);
  assert.equal(world.history.read({ scope: 'cluster', step: 86_400_000 })?.step_ms, 86_400_000);
});

test('1,000 nodes take 14 MB; without room a node has no history, and one that is gone gives its place', () => {
  const world = new World();
  const nodes = Array.from({ length: 1_000 }, (_, i) => node(`n${i}`));
  for (let i = 0; i < 6; i++) world.tick(nodes);
  assert.ok(world.history.numBytes < 16e6, String(world.history.numBytes));
  assert.deepEqual(world.full, []);
  const small = new World(MIB);
  const few = nodes.slice(0, 100);
  for (let i = 0; i < 6; i++) small.tick(few);
  assert.equal(small.full.length, 1);
  assert.ok(small.history.numBytes <= MIB);
  const late = node('late');
  for (let i = 0; i < 11; i++) small.tick([late]);
  assert.equal(small.series('node:late', 'failed_calls_per_s')?.length, 1);
});

test('the cluster has its history, and its newest values, whatever the room', () => {
  const world = new World(1_024);
  const instance = node('d1');
  heard(instance, 0);
  for (let i = 0; i < 6; i++) world.tick([instance]);
  assert.deepEqual(world.history.scopes, ['cluster']);
  assert.equal(world.history.isFull, true);
  assert.equal(world.full.length, 1);
  assert.equal(world.series('cluster', 'running')?.at(-1), 2);
  assert.equal(world.history.now['running'], 2);
});

test('3,600 ticks with requests leave the heap where it was', async () => {
  const clock = new SimulatedClock();
  const history = new History({ clock, maxBytes: 64 * MIB, onFull: () => undefined });
  const log = new RequestLog(clock, [history], 8);
  const instance = node('d1');
  const run = async (numTicks: number): Promise<void> => {
    for (let i = 0; i < numTicks; i++) {
      await clock.run(clock.nowMs() + 1_000);
      heard(instance, i);
      const trace = opened(log, `r${i}`, { model: 'm' });
      trace.emit(placedAt('d1'));
      trace.emit({ kind: 'firstToken', attempt: 1, report: undefined, isFirst: true });
      for (let k = 0; k < 10; k++) trace.emit(TOKEN);
      trace.end('finished', 'stop');
      history.tick([instance]);
    }
  };
  // It runs as long before: what the runtime itself keeps grows at first.
  await run(3_600);
  const { numBytes, scopes } = history;
  collect();
  // eslint-disable-next-line time/speed -- memory of this process, which is alone in it
  const heapBytes = process.memoryUsage().heapUsed;
  await run(3_600);
  collect();
  // eslint-disable-next-line time/speed -- as above
  const grown = process.memoryUsage().heapUsed - heapBytes;
  assert.ok(grown < MIB, `${grown} bytes more`);
  assert.equal(history.numBytes, numBytes);
  assert.deepEqual(history.scopes, scopes);
});

test('quantiles are within 5 % of those of the times', () => {
  const histogram = new LatencyHistogram();
  const times = Array.from({ length: 5_000 }, (_, i) => Math.exp(((i * 7_919) % 5_000) / 400));
  for (const ms of times) histogram.add(ms);
  times.sort((a, b) => a - b);
  for (const share of [0.5, 0.95, 0.99]) {
    const exact = times[Math.ceil(share * times.length) - 1] ?? 0;
    assert.ok(Math.abs(histogram.quantile(share) / exact - 1) < 0.05);
  }
});

test('an embedding is a request with a prompt, and no output', () => {
  const world = new World();
  const log = new RequestLog(new SimulatedClock(), [world.history], 10);
  world.tick([]);
  for (const endpoint of ['/v1/embeddings', '/v1/completions']) {
    const trace = log.open(endpoint, kindOf(endpoint), { clientId: undefined, traceId: undefined });
    trace.emit({ kind: 'read', facts: { promptTokens: 8 } });
    trace.emit(placedAt('d1'));
    trace.emit({ kind: 'firstToken', attempt: 1, report: undefined, isFirst: true });
    if (endpoint === '/v1/completions') trace.emit(TOKEN);
    trace.end('finished', 'stop');
  }
  world.tick([]);
  const last = (name: string): number | null | undefined => world.series('cluster', name)?.at(-1);
  assert.deepEqual(['requests_per_s', 'prompt_tokens_per_s', 'output_tokens_per_s'].map(last), [2, 16, 1]);
});
