/** Encoders of a pretoken's text to ids: its bytes or characters are merged; the library encodes what has no token. */
import { byteLetters } from '../../model/byte_letters.ts';
import type { BytePairs } from './byte_pairs.ts';
import type { LibraryTokenizer } from './library_tokenizer.ts';

/** Returns the vocabulary's ids of tokens. A token without an id becomes the unknown token, or is dropped when the model has none. */
export function libraryIds({ model }: LibraryTokenizer, tokens: readonly string[]): Uint32Array {
  return Uint32Array.from(tokens.flatMap((token) => model.tokens_to_ids.get(token) ?? model.unk_token_id ?? []));
}

const encoder = new TextEncoder();

/** Buffer for the symbols of one pretoken, grown when a longer one comes. */
let symbols = new Int32Array(256);

function room(count: number): Int32Array {
  if (symbols.length < count) symbols = new Int32Array(2 * count);
  return symbols;
}

/** Returns the pretoken encoder of a byte-level tokenizer, or undefined when a byte has no token. */
export function byteEncoder(
  library: LibraryTokenizer,
  pairs: BytePairs,
): ((pretoken: string) => Uint32Array) | undefined {
  const { model, tokenizer } = library;
  const idOfByte = byteLetters.map((letter) => model.tokens_to_ids.get(letter));
  if (idOfByte.includes(undefined)) return undefined;
  const ids = Int32Array.from(idOfByte, (id) => id ?? 0);
  const ignoresMerges = tokenizer.model.ignore_merges ?? false;
  return (pretoken) => {
    const bytes = encoder.encode(pretoken);
    if (ignoresMerges) {
      const whole = model.tokens_to_ids.get(Array.from(bytes, (byte) => byteLetters[byte]).join(''));
      if (whole !== undefined) return Uint32Array.of(whole);
    }
    const into = room(bytes.length);
    for (let i = 0; i < bytes.length; i++) into[i] = ids[bytes[i]!]!;
    return Uint32Array.from(into.subarray(0, pairs.merge(into, bytes.length)));
  };
}

/**
 * Returns the pretoken encoder of a character-level tokenizer. A character without a token becomes its byte tokens when the vocabulary
 * has them, else the unknown token.
 */
export function characterEncoder(library: LibraryTokenizer, pairs: BytePairs): (pretoken: string) => Uint32Array {
  const { model, tokenizer } = library;
  const ignoresMerges = tokenizer.model.ignore_merges ?? false;
  return (pretoken) => {
    const whole = ignoresMerges ? model.tokens_to_ids.get(pretoken) : undefined;
    if (whole !== undefined) return Uint32Array.of(whole);
    const characters = Array.from(pretoken);
    const into = room(characters.length);
    const unknown: string[] = [];
    characters.forEach((character, i) => {
      into[i] = model.tokens_to_ids.get(character) ?? -unknown.push(character);
    });
    const merged = into.subarray(0, pairs.merge(into, characters.length));
    if (unknown.length === 0) return Uint32Array.from(merged);
    return Uint32Array.from(
      [...merged].flatMap((id) => (id >= 0 ? [id] : [...libraryIds(library, model.encode([unknown[-id - 1] ?? '']))])),
    );
  };
}
