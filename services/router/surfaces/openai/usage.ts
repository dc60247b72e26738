/** The usage of answers, in OpenAI's form. */
import type { LostTokens } from '../../../../shared/protocol/request_detail.ts';
import type { RequestCounts } from '../../record/request_counts.ts';

/** Token counts of an answer, in OpenAI's form. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number } & LostTokens;
  /** Absent when the output is not parsed for reasoning. */
  readonly completion_tokens_details?: { readonly reasoning_tokens: number };
}

/**
 * Returns the usage of all prompts of a request; tokens that were not computed for the request count as cached. `part`: for usage during a
 * stream, one choice and how many of its tokens were sent; they replace the output counts of all.
 */
export function usageOf(
  all: readonly RequestCounts[],
  part?: { readonly counts: RequestCounts; readonly numTokens: number },
): Usage {
  const total = (value: (counts: RequestCounts) => number): number =>
    all.reduce((sum, counts) => sum + value(counts), 0);
  const prompt = total(({ promptTokens }) => promptTokens);
  const completion = part?.numTokens ?? total(({ outputTokens }) => outputTokens);
  const outputs = part ? [part.counts] : all;
  const isParsed = outputs.some(({ reasoningTokens }) => reasoningTokens !== undefined);
  const reasoning = outputs.reduce((sum, { reasoningTokens = 0 }) => sum + reasoningTokens, 0);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: total(({ tokens }) => tokens.cached), ...lostOf(all) },
    ...(isParsed ? { completion_tokens_details: { reasoning_tokens: Math.min(reasoning, completion) } } : {}),
  };
}

/** Returns the lost cache hits of all prompts, with the position of the first of them that has any. */
function lostOf(all: readonly RequestCounts[]): LostTokens {
  const losses = all.map(({ lost }) => lost).filter(({ lost_tokens: numLost = 0 }) => numLost > 0);
  const numLost = losses.reduce((sum, { lost_tokens: own = 0 }) => sum + own, 0);
  return losses[0] ? { ...losses[0], lost_tokens: numLost } : {};
}
