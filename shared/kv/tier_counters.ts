/** What a tier counts: hits and misses of those who look, and what comes in and goes. */
export interface TierCounters {
  hits: number;
  misses: number;
  evictions: number;
  /** Blocks that came in, duplicates too. */
  offered: number;
  /** Blocks that took room. */
  stored: number;
}

export function newTierCounters(): TierCounters {
  return { hits: 0, misses: 0, evictions: 0, offered: 0, stored: 0 };
}

/** How many times over the stored blocks were offered; 1 when nothing was offered twice. */
export function dedupFactor(counters: TierCounters): number {
  return counters.stored === 0 ? 1 : counters.offered / counters.stored;
}
