/** Load of an instance from its engine's report. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { EngineInfo, EngineLoad } from '../../shared/engine/engine_messages.ts';
import { engineLoad } from '../../shared/instance/engine_load.ts';
import type { RecordCache } from '../../shared/kv/record_cache.ts';
import { newTierCounters } from '../../shared/kv/tier_counters.ts';

const info = { layout: { spec: { payloadBytes: 100, slotBytes: 128 } }, numBlocks: 40 } as unknown as EngineInfo;
const cache = { numSlotsInTransit: 2, counters: newTierCounters(), size: 3 } as unknown as RecordCache;
const report: EngineLoad = {
  numRunning: 2,
  numWaiting: 1,
  numPreemptions: 4,
  numSteps: 9,
  lastStepMs: 5,
  numDeferred: 1,
  numFetching: { waiting: 0, loading: 2, loaded: 1 },
  iterationTokens: { counts: [3], sum: 3 },
  numKeyed: 6,
  numAvailable: 30,
  counters: newTierCounters(),
};

test('slots for recurrent states are those of the last report, and absent for a model without', () => {
  const states = { slots: 8, saved: 3, used: 4, hits: 5, evictions: 1 };
  assert.deepEqual(engineLoad(info, { ...report, states }, cache, 1_024).states, states);
  assert(!('states' in engineLoad(info, { ...report, states: undefined }, cache, 1_024)));
  assert(!('states' in engineLoad(info, undefined, cache, 1_024)));
});

test('sequences by reason and stage, steps, and the room for blocks', () => {
  const { deferred, kvFetch, iterationTokens, kv, residency } = engineLoad(info, report, cache, 1_024);
  assert.equal(deferred, 1);
  assert.deepEqual(kvFetch, { waiting_to_start: 0, in_progress: 2, completed_waiting: 1 });
  assert.deepEqual(iterationTokens, { counts: [3], sum: 3 });
  assert.deepEqual(kv, { blocks: 40, hostBlocks: 8 });
  assert.equal(residency, undefined);
});

test('blocks in use are those of the device that cannot be allocated, and bytes follow from the sizes of blocks', () => {
  const { kvUsage, running, waiting, tiers } = engineLoad(info, report, cache, 1_024);
  assert.deepEqual([kvUsage, running, waiting], [0.25, 2, 1]);
  assert.deepEqual([tiers.device?.bytes, tiers.device?.capacityBytes], [600, 4_000]);
  assert.deepEqual([tiers.dram?.bytes, tiers.dram?.capacityBytes], [384, 1_024]);
});
