/** The prompt in an answer: its text and log-probabilities with `echo`, and vLLM's `prompt_logprobs`. */
import type { SampledMessage } from '../../../../shared/protocol/messages.ts';
import type { Generation } from '../../relay/generation.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { tokenNames } from './common.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';

/** Prompt tokens that are formatted between two turns of the event loop: some milliseconds. */
const TOKENS_AT_ONCE = 128;

/** Returns every token of the prompt; the first has no log-probability. Complete once the first token of the output has arrived. */
export function promptTokensOf({ promptTokens, promptLogprobs }: Generation): SampledMessage[] {
  const first = { token: promptTokens[0] ?? 0, logprob: [], topTokens: [], topLogprobs: [], position: 0 };
  return [first, ...(promptLogprobs ?? [])];
}

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

/** Returns the text of a prompt: as sent, or decoded from its ids; empty when the model has no tokenizer. */
export async function promptTextOf(
  { codec }: ApiContext,
  prompt: string | Uint32Array,
  signal: AbortSignal,
): Promise<string> {
  if (typeof prompt === 'string') return prompt;
  return codec.hasTokenizer ? codec.detokenize(prompt, signal) : '';
}

/** Splits values into slices of TOKENS_AT_ONCE, so that a long prompt does not hold up other streams. */
export function inSlices<T>(values: readonly T[]): T[][] {
  return Array.from({ length: Math.ceil(values.length / TOKENS_AT_ONCE) }, (_, i) =>
    values.slice(i * TOKENS_AT_ONCE, (i + 1) * TOKENS_AT_ONCE),
  );
}

/**
 * Returns the `prompt_logprobs` of an answer as JSON text: for each prompt token, log-probability, rank and text by token id; null for
 * the first.
 */
export async function promptLogprobsJson(context: ApiContext, generation: Generation, numTop: number): Promise<string> {
  const parts: string[] = [];
  for (const slice of inSlices(promptTokensOf(generation))) {
    const nameOf = await tokenNames(context, slice);
    const decoded = (id: number): string => nameOf(id).text ?? nameOf(id).escaped;
    for (const { token, logprob, topTokens, topLogprobs } of slice) {
      if (logprob.length === 0) {
        parts.push('null');
        continue;
      }
      const best = topTokens
        .slice(0, numTop)
        .map((top, i): [number, object] => [
          top,
          { logprob: topLogprobs[i], rank: i + 1, decoded_token: decoded(top) },
        ]);
      const rank = topTokens.indexOf(token);
      const own = { logprob: logprob[0], rank: rank < 0 ? null : rank + 1, decoded_token: decoded(token) };
      parts.push(JSON.stringify(Object.fromEntries([...best, [token, own]])));
    }
    await context.clock.turn();
  }
  return `[${parts.join()}]`;
}
