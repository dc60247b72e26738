/** A tier's counters as heartbeats and the dashboard show them. */
import { dedupFactor, type TierCounters } from '../kv/tier_counters.ts';
import type { TierStats } from './membership.ts';

/** Returns a tier's counters in the form of a heartbeat. `blockBytes` is the size of one block, from which `bytes` is computed. */
export function tierStats(
  counters: TierCounters,
  blocks: number,
  blockBytes: number,
  capacityBytes: number,
): TierStats {
  const { hits, misses, evictions } = counters;
  return {
    blocks,
    bytes: blocks * blockBytes,
    capacityBytes,
    hits,
    misses,
    evictions,
    dedupFactor: dedupFactor(counters),
  };
}
