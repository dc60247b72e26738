/** Log-probabilities as `/v1/completions` has them: four parallel lists, with each token's place in the text of its choice. */
import type { SampledMessage } from '../../../../shared/protocol/messages.ts';
import type { TokenName } from '../../../../shared/text/text.ts';
import { numCharactersOf } from '../../../../shared/text/text_stream.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { tokenNames } from './common.ts';

/** `logprobs` of a `/v1/completions` choice: parallel lists, one entry per token. */
export interface Logprobs {
  readonly tokens: readonly string[];
  readonly token_logprobs: readonly (number | null)[];
  readonly top_logprobs: readonly (Record<string, number | undefined> | null)[];
  /** Offset of each token in the text of its choice, in characters (code points). */
  readonly text_offset: readonly number[];
}

/** Returns where a token begins in the text of its choice, in characters; called for each token in order. */
export type OffsetOf = (name: TokenName) => number;

/**
 * Returns the log-probabilities of `tokens` with up to `numTop` alternatives each, tokens by their text or, with `isNamingIds`, as
 * `token_id:N`. `offsetOf` is called once per token, in order.
 */
export async function completionLogprobs(
  context: ApiContext,
  tokens: readonly SampledMessage[],
  offsetOf: OffsetOf,
  { numTop, isNamingIds = false }: { readonly numTop: number; readonly isNamingIds?: boolean },
): Promise<Logprobs> {
  const nameOf = await tokenNames(context, tokens, isNamingIds);
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
  nameOf: (id: number) => TokenName,
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

/**
 * Finds the offset of each prompt token in the client's text. The search tolerates a tokenizer that adds tokens, drops spaces or
 * changes letters.
 */
export class PromptOffsets {
  readonly #text: string;
  /** Decodes token bytes; a character that is split over tokens is complete with the last of them. */
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  /** Position in the text, in UTF-16 code units. */
  #at = 0;
  #numCharacters = 0;

  constructor(text: string) {
    this.#text = text;
  }

  /** Returns where the next token begins in the text, in characters (code points). Called once for each token, in order. */
  next({ bytes, isAdded }: Pick<TokenName, 'bytes' | 'isAdded'>): number {
    const start = this.#numCharacters;
    const text = this.#decoder.decode(Uint8Array.from(bytes), { stream: true });
    const end = text === '' ? this.#at : this.#endOf(text, isAdded);
    this.#numCharacters += numCharactersOf(this.#text.slice(this.#at, end));
    this.#at = end;
    return start;
  }

  /** Returns the position after a token's text, in UTF-16 code units. */
  #endOf(text: string, isAdded: boolean): number {
    const at = this.#at;
    const behindSpaces = at + (/^\s*/.exec(this.#text.slice(at))?.[0].length ?? 0);
    for (const [from, part] of [
      [at, text],
      // The space that a tokenizer puts in front of a text.
      [at, text.replace(/^ /, '')],
      // Spaces beside an added token, which belong to no token.
      [behindSpaces, text],
    ] as const) {
      if (this.#text.startsWith(part, from)) return from + part.length;
    }
    // No match: a token that the tokenizer adds to a prompt, or letters that it has changed.
    return isAdded ? at : Math.min(this.#text.length, at + text.length);
  }
}
