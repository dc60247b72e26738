/** vLLM's `prompt_logprobs` of an answer. */
import type { Generation } from '../../relay/generation.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { promptSlices } from '../../api/prompt_logprobs.ts';
import { tokenNames } from '../../api/token_names.ts';

/**
 * Returns the `prompt_logprobs` of an answer as JSON text: for each prompt token, log-probability, rank and text by token id; null for
 * the first.
 */
export async function promptLogprobsJson(context: ApiContext, generation: Generation, numTop: number): Promise<string> {
  const parts: string[] = [];
  for (const slice of promptSlices(generation)) {
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
