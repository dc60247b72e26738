/** Counts of one tier since its start: lookups that hit or missed, evictions, blocks offered and stored. */
export interface TierCounters {
  hits: number;
  misses: number;
  evictions: number;
  /** Blocks offered to the tier, duplicates included. */
  offered: number;
  /** Offered blocks that were stored, duplicates excluded. */
  stored: number;
}

/** Returns counters at zero. */
export function newTierCounters(): TierCounters {
  return { hits: 0, misses: 0, evictions: 0, offered: 0, stored: 0 };
}

/** Returns how often each stored block was offered on average; 1 when nothing was offered twice. */
export function dedupFactor(counters: TierCounters): number {
  return counters.stored === 0 ? 1 : counters.offered / counters.stored;
}
