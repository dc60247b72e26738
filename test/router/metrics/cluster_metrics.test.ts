/** Series of the cluster that come from heartbeats. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../services/router/cluster/instance.ts';
import { clusterMetrics, type Observed } from '../../../services/router/metrics/cluster_metrics.ts';
import { readHeartbeat, toBytes, type InstanceLoad } from '../../../shared/protocol/membership.ts';

function engine(name: string, states?: InstanceLoad['states']): Instance {
  const member = { name, role: 'decode', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
  const instance = new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
  const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };
  const status = { load: { ...load, ...(states ? { states } : {}) }, blocks: 0, seen: {} };
  instance.receiveHeartbeat(readHeartbeat(toBytes({ name, epoch: 'e', ...status })), 'r', 0);
  return instance;
}

test('slots for recurrent states by their use, hits and evictions, of the engines that have some', async () => {
  const instances = [
    engine('hybrid', { slots: 24, saved: 9, used: 5, hits: 31, evictions: 2 }),
    engine('other', { slots: 8, saved: 0, used: 8, hits: 0, evictions: 7 }),
    engine('without'),
  ];
  const view = { all: () => instances, of: () => [], otherRouters: [] };
  const index = { size: 0, numBytes: 0 };
  const bus = { isConnected: true, numUnverified: 0 };
  const registry = clusterMetrics({ view, index, bus } as unknown as Observed);
  const seriesOf = async (name: string): Promise<unknown> =>
    (await registry.getSingleMetric(name)?.get())?.values.map(({ labels, value }) => [
      ...[labels['engine'], labels['role'], labels['model_name'], labels['state']].filter((one) => one !== undefined),
      value,
    ]);
  assert.deepEqual(await seriesOf('penstock_state_slots'), [
    ['hybrid', 'decode', 'm', 'used', 5],
    ['hybrid', 'decode', 'm', 'saved', 9],
    ['hybrid', 'decode', 'm', 'free', 10],
    ['other', 'decode', 'm', 'used', 8],
    ['other', 'decode', 'm', 'saved', 0],
    ['other', 'decode', 'm', 'free', 0],
  ]);
  assert.deepEqual(await seriesOf('penstock_state_hits_total'), [
    ['hybrid', 'decode', 'm', 31],
    ['other', 'decode', 'm', 0],
  ]);
  assert.deepEqual(await seriesOf('penstock_state_evictions_total'), [
    ['hybrid', 'decode', 'm', 2],
    ['other', 'decode', 'm', 7],
  ]);
});
