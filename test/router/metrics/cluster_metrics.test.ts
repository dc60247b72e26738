/** Series of the cluster that come from heartbeats. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { clusterMetrics } from '../../../services/router/metrics/cluster_metrics.ts';
import {
  readHeartbeat,
  toBytes,
  type InstanceLoad,
  type Registration,
  type Role,
} from '../../../shared/protocol/membership.ts';

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
  const view = { all: () => instances, of: () => [] };
  const registry = clusterMetrics(view as unknown as ClusterView);
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

test('series of engines carry the name of their own model, and stores have none under vLLM’s names', async () => {
  const member = (name: string, role: Role, model?: string): Instance => {
    const format = { blockSize: 16, kvDtype: 'f16' };
    const engine = model === undefined ? {} : { engine: { format, maxModelLen: 64 } };
    const registration = {
      member: { name, role, address: `${name}:1`, pid: 1, epoch: 'e' },
      protocolVersion: 1,
      ...engine,
    };
    const instance = new Instance(registration as Registration, 0, undefined, model);
    const ofEngine = {
      deferred: 1,
      kvUsage: 0.5,
      kv: { blocks: 8, hostBlocks: 4 },
      iterationTokens: { counts: [2, 1], sum: 7 },
      kvFetch: { waiting_to_start: 1, in_progress: 2, completed_waiting: 0 },
      residency: {
        blockLifetime: { counts: [0, 3], sum: 0.004 },
        blockIdle: { counts: [], sum: 0 },
        blockReuseGap: { counts: [], sum: 0 },
      },
    };
    const load = { running: 2, waiting: 3, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };
    const status = { load: { ...load, ...(role === 'store' ? {} : ofEngine) }, blocks: 0, seen: {} };
    instance.receiveHeartbeat(readHeartbeat(toBytes({ name, epoch: 'e', ...status })), 'r', 0);
    return instance;
  };
  const instances = [member('d1', 'decode', 'first'), member('p1', 'prefill', 'second'), member('s1', 'store')];
  const view = { all: () => instances, of: () => [] };
  const text = await clusterMetrics(view as unknown as ClusterView).metrics();
  const theirs = text.split('\n').filter((line) => line.startsWith('vllm:'));
  assert.deepEqual(
    theirs.filter((line) => line.includes('engine="s1"')),
    [],
  );
  for (const line of theirs)
    assert(line.includes(line.includes('engine="d1"') ? 'model_name="first"' : 'model_name="second"'), line);
  for (const wanted of [
    /^vllm:num_requests_waiting_by_reason\{engine="d1".*reason="capacity"\} 2$/m,
    /^vllm:num_requests_waiting_by_reason\{engine="d1".*reason="deferred"\} 1$/m,
    /^vllm:num_requests_kv_fetch_by_stage\{engine="p1".*stage="in_progress"\} 2$/m,
    /^vllm:iteration_tokens_total_bucket\{engine="d1".*le="1.0"\} 2$/m,
    /^vllm:iteration_tokens_total_bucket\{engine="d1".*le="\+Inf"\} 3$/m,
    /^vllm:iteration_tokens_total_sum\{engine="d1".*\} 7$/m,
    /^vllm:kv_block_lifetime_seconds_bucket\{engine="d1".*le="0.002"\} 3$/m,
    /^vllm:kv_block_reuse_gap_seconds_count\{engine="d1".*\} 0$/m,
    /^vllm:cache_config_info\{engine="d1".*block_size="16".*kv_cache_max_concurrency="2.00",kv_cache_size_tokens="128".*num_gpu_blocks="8".*\} 1$/m,
    /^penstock_step_seconds\{engine="s1",role="store"\} 0$/m,
  ])
    assert.match(text, wanted);
});
