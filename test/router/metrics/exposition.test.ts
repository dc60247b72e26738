/** Scopes of `/metrics`, and what a scrape waits for. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import { Exposition, type ExpositionOptions } from '../../../services/router/metrics/exposition.ts';
import { RouterMetrics } from '../../../services/router/metrics/metrics.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { silentLog } from '../../../shared/base/log.ts';
import type { InstanceLoad } from '../../../shared/protocol/membership.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { opened, placedAt } from '../../support/request_events.ts';

function router() {
  const clock = new SimulatedClock();
  const member = { name: 'd1', role: 'decode', address: 'h:1', pid: 1, epoch: 'e' } as const;
  const instance = new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
  const view = { all: () => [instance], of: () => [instance], otherRouters: [] };
  const metrics = new RouterMetrics('m', silentLog, {
    nowMs: () => clock.nowMs(),
    instances: () => ({ all: () => [], model: undefined }),
  });
  const parts = {
    clock,
    view,
    index: { size: 5, bytes: 6, numDropped: 0 },
    bus: { isConnected: true, numUnverified: 0 },
  };
  const exposition = new Exposition({ ...parts, models: () => [metrics] } as unknown as ExpositionOptions);
  const heard = (running: number, numTokens: number): void => {
    const load: InstanceLoad = {
      running,
      waiting: 0,
      preemptions: 0,
      lastStepMs: 0,
      isDraining: false,
      tiers: {},
      iterationTokens: { counts: [0, 1], sum: numTokens },
    };
    instance.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r', clock.nowMs());
  };
  /** Ends a request on the instance now. */
  const ended = (): void => {
    const trace = opened(new RequestLog(clock, [metrics], 16), 'r', { promptTokens: 4 });
    trace.emit(placedAt('d1'));
    trace.end('finished', 'stop');
  };
  return { clock, exposition, heard, ended };
}

test('the series of the router and of the cluster are disjoint, and both together are all', async () => {
  const { clock, exposition, heard, ended } = router();
  ended();
  heard(0, 3);
  exposition.http.observe('/v1/completions', 'POST', 201, 0.2);
  const texts = (['router', 'cluster', undefined] as const).map((scope) => exposition.text(scope));
  let hasAll = false;
  const scraped = Promise.all(texts).finally(() => (hasAll = true));
  while (!hasAll) await clock.run(0);
  const [own, cluster, all] = await scraped;
  assert(own && cluster && all);
  const names = (text: string): string[] => [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name = '']) => name);
  assert.deepEqual(
    names(own).filter((name) => names(cluster).includes(name)),
    [],
  );
  assert.deepEqual(names(all).sort(), [...names(own), ...names(cluster)].sort());
  for (const name of [
    'vllm:request_success_total',
    'http_requests_total',
    'penstock_index_keys',
    'process_cpu_seconds_total',
  ])
    assert(names(own).includes(name), name);
  for (const name of ['vllm:num_requests_running', 'vllm:iteration_tokens_total', 'penstock_instances'])
    assert(names(cluster).includes(name), name);
  assert.match(own, /^http_requests_total\{handler="\/v1\/completions",status="2xx",method="POST"\} 1$/m);
});

test('a scrape waits for the heartbeat that counts what has ended before it, and no longer than 700 ms', async () => {
  for (const [running, heardAtMs, wanted] of [
    [0, 60, 60],
    // Busy: the first heartbeat after the end may have been sent before it.
    [1, 60, 700],
    [1, 150, 150],
    [0, 5_000, 700],
  ] as const) {
    const { clock, exposition, heard, ended } = router();
    heard(0, 1);
    await clock.run(20);
    ended();
    const beganMs = clock.nowMs();
    let atMs: number | undefined;
    const scraped = exposition.text('cluster').then(() => {
      atMs = clock.nowMs() - beganMs;
    });
    await clock.run(beganMs + heardAtMs);
    heard(running, 9);
    await clock.run(beganMs + 6_000);
    await scraped;
    assert(atMs !== undefined && atMs >= wanted && atMs <= wanted + 20, `${running} ${heardAtMs}: ${atMs}`);
  }
});

test('a scrape of the router alone waits for nothing', async () => {
  const { clock, exposition, ended } = router();
  await clock.run(20);
  ended();
  assert.match(
    await exposition.text('router'),
    /vllm:request_success_total\{engine="d1",finished_reason="stop",model_name="m"\} 1/,
  );
});

test('a scrape lists the members once per look, not once per engine', async () => {
  const clock = new SimulatedClock();
  const members = Array.from({ length: 500 }, (_, i) => {
    const member = { name: `d${i}`, role: 'decode', address: 'h:1', pid: 1, epoch: 'e' } as const;
    return new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
  });
  let numListed = 0;
  const all = (): Instance[] => {
    numListed++;
    return members;
  };
  const ended = members.map(({ member }) => [member.name, 5] as const);
  const model = { ended: () => ended, text: () => Promise.resolve('') };
  const exposition = new Exposition({
    clock,
    view: { all, of: () => [], otherRouters: [] },
    index: { size: 0, bytes: 0, numDropped: 0 },
    bus: { isConnected: true, numUnverified: 0 },
    models: () => [model],
  } as unknown as ExpositionOptions);
  const text = exposition.text('cluster');
  await clock.run(2_000);
  await text;
  assert.ok(numListed < 200, `${numListed} lists`);
});

test('other work has its turn between the metrics of a large cluster', async () => {
  let [numTurns, numInTurn, most] = [0, 0, 0];
  const clock = {
    nowMs: () => 0,
    turn: () => {
      numTurns++;
      most = Math.max(most, numInTurn);
      numInTurn = 0;
      return Promise.resolve();
    },
  };
  const all = (): Instance[] => {
    numInTurn++;
    return [];
  };
  const exposition = new Exposition({
    clock,
    view: { all, of: () => [], otherRouters: [] },
    index: { size: 0, bytes: 0, numDropped: 0 },
    bus: { isConnected: true, numUnverified: 0 },
    models: () => [],
  } as unknown as ExpositionOptions);
  await exposition.text('cluster');
  assert(numTurns > 20, `${numTurns} turns`);
  // The members are listed once by each metric, and once by the wait for their heartbeats.
  assert(most <= 2, `${most} metrics in one turn`);
});
