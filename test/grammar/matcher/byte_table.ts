/** A small vocabulary: a token for each byte, tokens of several bytes, and special ones. */
import { tableOf, type TokenTable } from '../../../shared/grammar/matcher/token_table.ts';

/** Tokens of several bytes, from id 256 on. */
const WORDS = ['ab', 'abc', 'bc', '{"', '":', '","', '"}', 'é', 'name', '"name"', 'true', 'xx', '  ', '\n', '日本'];

/** Id of the token that ends an answer, and of another special one. */
export const END = 256 + WORDS.length;
export const OTHER_END = END + 1;
/** Logits of the model: the last ids are no tokens. */
export const VOCAB_SIZE = OTHER_END + 4;

export const byteTable: TokenTable = tableOf(
  Array.from({ length: VOCAB_SIZE }, (_, id) => {
    if (id < 256) return Uint8Array.of(id);
    const word = WORDS[id - 256];
    return word === undefined ? undefined : new TextEncoder().encode(word);
  }),
);

/** Returns the tokens of a text, one a byte. */
export function tokensOf(text: string): number[] {
  return [...new TextEncoder().encode(text)];
}

/** Returns the ids whose bits are set. */
export function allowedIn(words: Uint32Array): number[] {
  return Array.from({ length: 32 * words.length }, (_, id) => id).filter(
    (id) => (((words[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1,
  );
}
