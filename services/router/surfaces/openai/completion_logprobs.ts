/** Log-probabilities as `/v1/completions` has them: four parallel lists, with each token's place in the text of its choice. */
import type { SampledMessage } from '../../../../shared/protocol/messages.ts';
import type { TokenName } from '../../../../shared/text/text.ts';
import type { OffsetOf } from '../../api/parsed_deltas.ts';
import type { NameOf } from '../../api/token_names.ts';

/** `logprobs` of a `/v1/completions` choice: parallel lists, one entry per token. */
export interface Logprobs {
  readonly tokens: readonly string[];
  readonly token_logprobs: readonly (number | null)[];
  readonly top_logprobs: readonly (Record<string, number | undefined> | null)[];
  /** Offset of each token in the text of its choice, in characters (code points). */
  readonly text_offset: readonly number[];
}

/**
 * Returns the log-probabilities of `tokens` with up to `numTop` alternatives each, by the names of tokens. `offsetOf` is called once per
 * token, in order.
 */
export function completionLogprobs(
  tokens: readonly SampledMessage[],
  nameOf: NameOf,
  offsetOf: OffsetOf,
  numTop: number,
): Logprobs {
  return {
    tokens: tokens.map(({ token }) => keyOf(nameOf(token))),
    token_logprobs: tokens.map(({ logprob }) => logprob[0] ?? null),
    top_logprobs: tokens.map((one) => alternatives(one, nameOf, numTop)),
    text_offset: tokens.map(({ token }) => offsetOf(nameOf(token))),
  };
}

/** A token's text; `bytes:\\xe2\\x80` for a part of a character, as OpenAI's API has it. */
function keyOf({ text, escaped }: TokenName): string {
  return text ?? `bytes:${escaped}`;
}

/**
 * Returns log-probabilities of the sampled token and its best alternatives, by text. Of two tokens with the same text, the second is
 * named as the vocabulary spells it.
 */
function alternatives(
  { token, logprob, topTokens, topLogprobs }: SampledMessage,
  nameOf: NameOf,
  numTop: number,
): Record<string, number | undefined> | null {
  // The first token of a prompt has no log-probability.
  if (logprob.length === 0) return null;
  const values = new Map([[keyOf(nameOf(token)), logprob[0]]]);
  for (const [i, id] of topTokens.slice(0, numTop).entries()) {
    if (id === token) continue;
    const name = nameOf(id);
    const key = [keyOf(name), name.name, `token_id:${id}`].find((one) => !values.has(one));
    if (key !== undefined) values.set(key, topLogprobs[i]);
  }
  const best = [...values].sort(([, a = 0], [, b = 0]) => b - a);
  return Object.fromEntries(best);
}

/** Collects the lists of a whole output as JSON text, token by token. */
export class LogprobLists {
  readonly #parts: Record<keyof Logprobs, string[]> = {
    tokens: [],
    token_logprobs: [],
    top_logprobs: [],
    text_offset: [],
  };

  /** Appends the lists of further tokens. */
  add(logprobs: Logprobs): void {
    for (const [name, parts] of Object.entries(this.#parts) as [keyof Logprobs, string[]][]) {
      for (const one of logprobs[name]) parts.push(JSON.stringify(one));
    }
  }

  /** Returns all lists as one JSON object. */
  json(): string {
    return `{${Object.entries(this.#parts)
      .map(([name, parts]) => `"${name}":[${parts.join()}]`)
      .join()}}`;
  }
}
