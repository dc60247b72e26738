/**
 * Texts of single tokens, on the thread of running streams: a table of the vocabulary, which needs no other thread, and answers of the
 * tokenizer for tokens that the table leaves open.
 */
import { charactersOf, REPLACEMENT } from '../model/token_bytes.ts';

/** How a token stands in the table. */
const TokenKind = {
  /** Its text may depend on its neighbours, or it is an added token: the tokenizer knows. */
  open: 0,
  /** Its bytes are its text, whatever its neighbours are. */
  plain: 1,
  /** Its bytes are no whole characters, and become text together with those of its neighbours. */
  part: 2,
} as const;

/** Tokens of a slice of the table. */
export const SLICE_TOKENS = 1_024;

/** Kind and bytes of the tokens of a slice, in the order of their ids. */
export interface TextSlice {
  readonly kinds: Uint8Array;
  /** End of each token's bytes in `bytes`. */
  readonly ends: Uint32Array;
  readonly bytes: Uint8Array;
  /** Whether no slice comes after it. */
  readonly isLast: boolean;
}

/** Returns the slice from `from` on of a table of `numTokens`. `bytesOf` returns a token's bytes; undefined when its text is open. */
export function textSlice(from: number, numTokens: number, bytesOf: (id: number) => Uint8Array | undefined): TextSlice {
  const count = Math.max(0, Math.min(SLICE_TOKENS, numTokens - from));
  const [kinds, ends] = [new Uint8Array(count), new Uint32Array(count)];
  const parts: Uint8Array[] = [];
  let length = 0;
  for (let i = 0; i < count; i++) {
    const bytes = bytesOf(from + i) ?? new Uint8Array(0);
    const text = charactersOf(bytes);
    // A stream takes the replacement character for half a character.
    const isOpen = bytes.length === 0 || text?.includes(REPLACEMENT) === true;
    if (!isOpen) parts.push(bytes);
    if (!isOpen) length += bytes.length;
    kinds[i] = isOpen ? TokenKind.open : text === undefined ? TokenKind.part : TokenKind.plain;
    ends[i] = length;
  }
  return { kinds, ends, bytes: new Uint8Array(Buffer.concat(parts)), isLast: from + count >= numTokens };
}

/** The texts of a vocabulary. */
export class TokenTexts {
  readonly #ask: (id: number) => Promise<string | undefined> | undefined;
  readonly #slices: TextSlice[] = [];
  /** Texts that were used, by id; null when a text is open or not known yet. Bounded by the vocabulary (P1). */
  readonly #plain = new Map<number, string | null>();

  /** `ask` returns the text of a token when it does not depend on neighbours; undefined while nobody can be asked. */
  constructor(ask: (id: number) => Promise<string | undefined> | undefined) {
    this.#ask = ask;
  }

  /** Adds the next slice of the table. */
  add(slice: TextSlice): void {
    this.#slices.push(slice);
  }

  /**
   * Returns the text of a token when it does not depend on neighbours. For a token that the table leaves open, the first call returns
   * undefined and starts the look-up for later calls.
   */
  plainText(id: number): string | undefined {
    const known = this.#plain.get(id);
    if (typeof known === 'string') return known;
    const kind = this.#kindOf(id);
    if (kind !== TokenKind.plain) {
      if (kind !== TokenKind.part && known === undefined) this.#lookUp(id);
      return undefined;
    }
    const text = Buffer.from(this.#bytesOf(id)).toString();
    this.#plain.set(id, text);
    return text;
  }

  /** Returns the bytes of a token that is part of a character; undefined for any other, and for one that is not in the table. */
  partOf(id: number): Uint8Array | undefined {
    return this.#kindOf(id) === TokenKind.part ? this.#bytesOf(id) : undefined;
  }

  #lookUp(id: number): void {
    const asked = this.#ask(id);
    if (!asked) return;
    this.#plain.set(id, null);
    asked.then(
      (text) => this.#plain.set(id, text ?? null),
      () => this.#plain.delete(id),
    );
  }

  #kindOf(id: number): number | undefined {
    return this.#slices[Math.floor(id / SLICE_TOKENS)]?.kinds[id % SLICE_TOKENS];
  }

  #bytesOf(id: number): Uint8Array {
    const { ends, bytes } = this.#slices[Math.floor(id / SLICE_TOKENS)] ?? {};
    const at = id % SLICE_TOKENS;
    return bytes?.subarray(ends?.[at - 1] ?? 0, ends?.[at]) ?? new Uint8Array(0);
  }
}
