/** The log-probabilities of a prompt, in slices that hold up no other stream. */
import type { CallFor } from '../../../shared/base/call_queue.ts';
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** Prompt tokens that are formatted between two turns of the event loop: some milliseconds. */
const TOKENS_AT_ONCE = 128;

/**
 * Upper bound of the prompt log-probabilities of one answer, alternatives included: each takes some hundred bytes until the answer is
 * one text.
 */
const MAX_PROMPT_LOGPROBS = 2 ** 20;

/** Refuses over MAX_PROMPT_LOGPROBS log-probabilities of prompts. @throws ParameterFailure naming `param`, which asks for them. */
export function refuseTooMany(count: number, param: 'echo' | 'prompt_logprobs'): void {
  if (count <= MAX_PROMPT_LOGPROBS) return;
  throw new ParameterFailure(
    `${param}: ${count} log-probabilities of prompts are more than ${MAX_PROMPT_LOGPROBS}; ask for fewer alternatives, or send fewer prompts at once`,
    param,
  );
}

/**
 * Returns every token of the prompt, in slices; the first token has no log-probability. Complete once the first token of the output has
 * arrived.
 */
export function promptSlices({ promptTokens, promptLogprobs }: Generation): SampledMessage[][] {
  const first = { token: promptTokens[0] ?? 0, logprob: [], topTokens: [], topLogprobs: [], position: 0 };
  const all = [first, ...(promptLogprobs ?? [])];
  return Array.from({ length: Math.ceil(all.length / TOKENS_AT_ONCE) }, (_, i) =>
    all.slice(i * TOKENS_AT_ONCE, (i + 1) * TOKENS_AT_ONCE),
  );
}

/** Returns the text of a prompt: as sent, or decoded from its ids; empty when the model has no tokenizer. */
export async function promptTextOf(
  { codec }: Pick<ApiContext, 'codec'>,
  prompt: string | Uint32Array,
  asking: CallFor,
): Promise<string> {
  if (typeof prompt === 'string') return prompt;
  return codec.hasTokenizer ? codec.detokenize(prompt, asking) : '';
}
