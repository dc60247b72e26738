/** Tokens that a request takes from the limit of its tenant before it runs; what it really used takes their place when it has ended. */
import type { RequestTrace } from '../record/request_trace.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import type { RequestScope } from './request_scope.ts';

/** A prompt that has been checked, and its first sample. */
interface CheckedPrompt {
  readonly trace: RequestTrace;
  readonly generation: Generation;
}

/**
 * Reserves the tokens of prompts and of the answers that are expected to so many samples of each. @throws RejectedFailure
 * `rate_limit_exceeded` when the limit has no room for them
 */
export async function reserveTokens(
  { relay }: Pick<ApiContext, 'relay'>,
  { allowance }: Pick<RequestScope, 'allowance'>,
  prompts: readonly CheckedPrompt[],
  numSamples: number,
): Promise<void> {
  if (!allowance?.countsTokens) return;
  let tokens = 0;
  for (const { trace, generation } of prompts) {
    const expected = await relay.expectedLength(generation, trace.record.endpoint);
    tokens += generation.promptTokens.length + numSamples * expected;
  }
  allowance.reserve(tokens);
}
