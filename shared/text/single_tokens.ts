/** Single tokens of a vocabulary, independent of their neighbours: names, bytes and texts. */
import { isBytesOfTokens, REPLACEMENT, tokenSpeller, type TokenBytes } from '../model/token_bytes.ts';
import type { LibraryTokenizer } from './encoder/library_tokenizer.ts';
import { textSlice, type TextSlice } from './token_texts.ts';

/** Returns what is known of tokens by themselves; one for each tokenizer thread. */
export class SingleTokens {
  readonly #tokenizer: LibraryTokenizer;
  readonly #spell: (token: string) => Uint8Array;
  /** Contents of the added tokens by id, which the decoder leaves unchanged. */
  readonly #added: ReadonlyMap<number, string>;
  /** Tokens whose text may be left out, wherever they stand in the vocabulary. */
  readonly #special: ReadonlySet<string>;
  #letter: number | undefined;

  /** `special`: further special tokens, which tokenizer_config.json names. */
  constructor(tokenizer: LibraryTokenizer, special: readonly string[]) {
    const { decoder, added_tokens: added } = tokenizer.tokenizer;
    this.#tokenizer = tokenizer;
    this.#spell = tokenSpeller(decoder);
    this.#added = new Map(added.map(({ id, content }) => [id, content]));
    this.#special = new Set([...this.#added.values(), ...special]);
  }

  /** Contents of the added tokens. */
  get added(): readonly string[] {
    return [...this.#added.values()];
  }

  /**
   * Returns the token's text when it is the same after any other such token and leaves the text after it unchanged. Undefined when it
   * depends on its neighbours: half a character, a special token, punctuation that removes the space before it. Found by decoding the
   * token between letters, so that no type of decoder must be known.
   */
  plainText(id: number): string | undefined {
    const textOf = (...ids: number[]): string => this.#tokenizer.decode(ids, { skip_special_tokens: true });
    this.#letter ??= this.#tokenizer.encode('x', { add_special_tokens: false }).ids[0];
    const letter = this.#letter;
    if (letter === undefined) return undefined;
    const first = textOf(letter);
    const next = textOf(letter, letter).slice(first.length);
    const text = textOf(letter, id).slice(first.length);
    if (text === '' || text.includes(REPLACEMENT)) return undefined;
    const isPlain =
      textOf(letter, id) === first + text &&
      textOf(letter, id, letter) === first + text + next &&
      textOf(letter, id, id) === first + text + text;
    return isPlain ? text : undefined;
  }

  /** Returns the texts of a slice of the vocabulary, from this id on. Where the decoder's type is not known, all of them are open. */
  textsOf(from: number): TextSlice {
    const { vocab } = this.#tokenizer.model;
    const isKnown = isBytesOfTokens(this.#tokenizer.tokenizer.decoder);
    return textSlice(from, vocab.length, (id) => {
      const name = vocab[id];
      const isOpen = !isKnown || name === undefined || this.#added.has(id) || this.#special.has(name);
      return isOpen ? undefined : this.#spell(name);
    });
  }

  /** Returns the bytes and names of tokens. One that is not in the vocabulary has no bytes. */
  bytesOf(ids: readonly number[]): TokenBytes[] {
    return ids.map((id) => {
      const added = this.#added.get(id);
      if (added !== undefined) return { bytes: new TextEncoder().encode(added), name: added, isAdded: true };
      const name = this.#tokenizer.model.vocab[id];
      const bytes = name === undefined ? new Uint8Array(0) : this.#spell(name);
      return { bytes, name: name ?? `token_id:${id}`, isAdded: false };
    });
  }
}
