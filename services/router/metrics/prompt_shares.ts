/**
 * Which instance served which tokens of a prompt: those that a prefill instance computed are its own, all others belong to the instance that
 * generated. Each token of the prompt is counted once, whatever was computed twice after a failure.
 */
import type { TokenSources } from '../../../shared/protocol/router_api.ts';
import { computedByPrefill, type RequestCounts } from '../record/request_counts.ts';

/** Cached tokens of a prompt by the tier that had them, as the instance that generated reports them. */
type CachedTokens = Omit<TokenSources, 'handoff' | 'computed'>;

/** Tokens of one prompt that one instance served. */
export interface PromptShare {
  readonly engine: string;
  readonly computed: number;
  readonly cached: CachedTokens;
}

const NOT_CACHED: CachedTokens = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0 };

/** Returns the shares of the instances of a prompt that was placed: the one that generated comes last. They add up to the prompt's tokens. */
export function promptShares(counts: RequestCounts): PromptShare[] {
  const { attempts, tokens } = counts;
  const last = attempts.at(-1);
  if (!last) return [];
  let left = tokens.computed;
  const shares: PromptShare[] = [];
  for (const attempt of attempts)
    for (const prefill of attempt.prefills) {
      const computed = Math.min(left, computedByPrefill(attempt, prefill));
      if (computed > 0) shares.push({ engine: prefill.name, computed, cached: NOT_CACHED });
      left -= computed;
    }
  // Without a report, when the request ended before its first token, nothing is known of the prompt.
  const isKnown = attempts.some(({ report }) => report !== undefined);
  return [...shares, { engine: last.decode, computed: left, cached: isKnown ? counts.sources : NOT_CACHED }];
}
