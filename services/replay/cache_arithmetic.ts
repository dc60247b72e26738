/**
 * Hits of one cache over a trace, without time: every request reads its blocks up to the first that is missing, and leaves all of them in
 * the cache. Eviction is that of the instances and stores (`shared/kv/eviction.ts`). The curve over capacities says how much memory a
 * workload pays for; no placement over several instances has more hits than unbounded memory has here.
 */
import { LeastRecentlyUsed } from '../../shared/kv/eviction.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Capacities of the curve in a report, in blocks of the trace; larger ones than the trace has blocks are left out. */
const CURVE_CAPACITIES: readonly number[] = [1_000, 3_000, 10_000, 30_000, 50_000, 100_000, 300_000];

/** Hits of a cache of one capacity. */
export interface CacheHits {
  /** Blocks that fit the cache; Infinity without bound. */
  readonly capacityBlocks: number;
  readonly hitBlocks: number;
  readonly hitTokens: number;
  /** Hits among all block references and all prompt tokens of the trace, from 0 to 1. */
  readonly blockShare: number;
  readonly tokenShare: number;
}

/** Blocks in the order of their last use, at most a fixed number of them. */
interface Cache {
  has(id: number): boolean;
  use(id: number): void;
}

/** Returns the hits of a cache of `capacityBlocks` blocks (at least 1) over the whole trace, which it meets empty. */
export function cacheHits(trace: Trace, capacityBlocks: number): CacheHits {
  const cache = capacityBlocks >= trace.numBlocks ? unboundedCache(trace.numBlocks) : lruCache(capacityBlocks);
  let [hitBlocks, hitTokens, numTokens] = [0, 0, 0];
  for (let index = 0; index < trace.numRequests; index++) {
    const ids = trace.hashIdsOf(index);
    const inputTokens = trace.columns.inputTokens[index]!;
    let hits = 0;
    while (hits < ids.length && cache.has(ids[hits]!)) hits++;
    hitBlocks += hits;
    // The last block may be partial.
    hitTokens += Math.min(hits * trace.blockTokens, inputTokens);
    numTokens += inputTokens;
    for (const id of ids) cache.use(id);
  }
  const numBlocks = trace.columns.hashIds.length;
  return { capacityBlocks, hitBlocks, hitTokens, blockShare: hitBlocks / numBlocks, tokenShare: hitTokens / numTokens };
}

/** Returns the hits for each capacity below the number of different blocks of the trace, and for unbounded memory last. */
export function cacheCurve(trace: Trace, capacities: readonly number[] = CURVE_CAPACITIES): readonly CacheHits[] {
  const bounded = capacities.filter((capacity) => capacity < trace.numBlocks);
  return [...bounded, Infinity].map((capacity) => cacheHits(trace, capacity));
}

function lruCache(capacity: number): Cache {
  /** At most `capacity` blocks (P1). */
  const blocks = new LeastRecentlyUsed<number>();
  return {
    has: (id) => blocks.has(id),
    use: (id) => {
      if (blocks.has(id)) {
        blocks.touch(id);
        return;
      }
      const victim = blocks.size >= capacity ? blocks.victim() : undefined;
      if (victim !== undefined) blocks.remove(victim);
      blocks.insert(id);
    },
  };
}

function unboundedCache(numBlocks: number): Cache {
  const isHeld = new Uint8Array(numBlocks);
  return {
    has: (id) => isHeld[id] === 1,
    use: (id) => {
      isHeld[id] = 1;
    },
  };
}
