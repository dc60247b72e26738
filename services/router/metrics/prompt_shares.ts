/**
 * Which instance served which tokens of a prompt: those that a prefill instance computed are its own, all others belong to the instance that
 * generated. Each token of the prompt is counted once, whatever was computed twice after a failure.
 */
import type { RequestCounts } from '../relay/request_counts.ts';

/** Cached tokens of a prompt by the tier that had them, as the instance that generated reports them. */
interface CachedTokens {
  readonly device: number;
  readonly dram: number;
  readonly instance: number;
  readonly store_dram: number;
  readonly store_disk: number;
}

/** Tokens of one prompt that one instance served. */
export interface PromptShare {
  readonly engine: string;
  readonly computed: number;
  readonly cached: CachedTokens;
}

const NOT_CACHED: CachedTokens = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0 };

/** Returns the shares of the instances of a prompt that was placed: the one that generated comes last. They add up to the prompt's tokens. */
export function promptShares(counts: RequestCounts): PromptShare[] {
  const { attempts, promptTokens, tokens } = counts;
  const last = attempts.at(-1);
  if (!last) return [];
  let left = tokens.computed;
  const shares: PromptShare[] = [];
  for (const { prefills } of attempts)
    for (const { name, computedTokens } of prefills) {
      const computed = Math.min(left, computedTokens);
      if (computed > 0) shares.push({ engine: name, computed, cached: NOT_CACHED });
      left -= computed;
    }
  const numCached = promptTokens - tokens.computed;
  // Without a report, when the request ended before its first token, nothing is known of the prompt.
  const isKnown = attempts.some(({ report }) => report !== undefined);
  return [
    ...shares,
    { engine: last.decode, computed: left, cached: isKnown ? cachedOf(counts, numCached) : NOT_CACHED },
  ];
}

/** Returns the cached tokens by tier. The reports' sum may differ from `numCached` after failures; the nearest tiers come first then. */
function cachedOf({ tokens }: RequestCounts, numCached: number): CachedTokens {
  const fetched = Math.min(numCached, tokens.fetched);
  return { ...NOT_CACHED, device: numCached - fetched, instance: fetched };
}
