/** Where the tokens of a prompt are in its text. */
import type { TokenName } from '../../../shared/text/text.ts';
import { numCharactersOf } from '../../../shared/text/text_stream.ts';

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
    const afterSpaces = at + (/^\s*/.exec(this.#text.slice(at))?.[0].length ?? 0);
    for (const [from, part] of [
      [at, text],
      // The space that a tokenizer puts in front of a text.
      [at, text.replace(/^ /, '')],
      // Spaces next to an added token, which belong to no token.
      [afterSpaces, text],
    ] as const) {
      if (this.#text.startsWith(part, from)) return from + part.length;
    }
    // No match: a token that the tokenizer adds to a prompt, or letters that it has changed.
    return isAdded ? at : Math.min(this.#text.length, at + text.length);
  }
}
