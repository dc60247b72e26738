/** Load of an instance as its heartbeats carry it: the engine's queues, and blocks of its device and host memory, and slots for recurrent states. */
import type { EngineInfo, EngineLoad } from '../engine/engine_messages.ts';
import type { RecordCache } from '../kv/record_cache.ts';
import { newTierCounters } from '../kv/tier_counters.ts';
import type { InstanceLoad } from '../protocol/membership.ts';
import { tierStats } from '../protocol/tier_stats.ts';

/** `engine`: its last report; undefined before the first. `dramBytes`: host memory of the instance. */
export function engineLoad(
  { layout, numBlocks }: EngineInfo,
  engine: EngineLoad | undefined,
  cache: RecordCache,
  dramBytes: number,
): Omit<InstanceLoad, 'isDraining' | 'arriving' | 'fetched' | 'openStreams'> {
  const { payloadBytes, slotBytes } = layout.spec;
  return {
    running: engine?.numRunning ?? 0,
    waiting: engine?.numWaiting ?? 0,
    preemptions: engine?.numPreemptions ?? 0,
    lastStepMs: engine?.lastStepMs ?? 0,
    kvUsage: engine ? 1 - engine.numAvailable / numBlocks : 0,
    lent: cache.numSlotsInTransit,
    kv: { blocks: numBlocks, hostBlocks: Math.floor(dramBytes / slotBytes) },
    ...(engine
      ? {
          deferred: engine.numDeferred,
          kvFetch: {
            waiting_to_start: engine.numFetching.waiting,
            in_progress: engine.numFetching.loading,
            completed_waiting: engine.numFetching.loaded,
          },
          iterationTokens: engine.iterationTokens,
          ...(engine.residency ? { residency: engine.residency } : {}),
        }
      : {}),
    ...(engine?.work ? { work: engine.work } : {}),
    ...(engine?.states ? { states: engine.states } : {}),
    tiers: {
      device: tierStats(
        engine?.counters ?? newTierCounters(),
        engine?.numKeyed ?? 0,
        payloadBytes,
        numBlocks * payloadBytes,
      ),
      dram: tierStats(cache.counters, cache.size, slotBytes, dramBytes),
    },
  };
}
