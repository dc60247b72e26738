/** Decodes one stream of tokens to text, and finds stop strings however tokens split them. */
import { charactersOf, REPLACEMENT } from '../model/token_bytes.ts';

/** Tokens of the prompt that the first output token is decoded with, so that it gets its leading space or not. */
const CONTEXT_TOKENS = 6;
/** Tokens without text that are kept for later tokens to complete. No character is split over more tokens. */
const MAX_UNFINISHED = 16;

/** Texts of single tokens, as far as a stream needs them. */
export interface StreamTexts {
  /** Returns the text of a token when it does not depend on neighbours; undefined when it does, or is not known yet. */
  plainText(id: number): string | undefined;
  /** Returns the bytes of a token that is part of a character; undefined for any other, and while they are not known. */
  partOf(id: number): Uint8Array | undefined;
}

/** Options of a stream's text: its stop strings, and whether special tokens are left out. */
export interface TextStreamOptions {
  readonly stops: readonly string[];
  /** Whether the stop string stays part of the text. */
  readonly isStopIncluded: boolean;
  readonly isSkippingSpecial: boolean;
  /** Special tokens that are left out while all others are shown; undefined: `isSkippingSpecial` says it of all. */
  readonly hiddenTokens?: ReadonlySet<number> | undefined;
}

/**
 * Converts tokens to text as they arrive, and holds no promise: where a text takes the tokenizer, {@link undecoded} says which, and the
 * stream goes on when it has it. The text never ends in half a character and never goes beyond a stop string; an end that could still
 * become a stop string is held back.
 */
export class TextStream {
  readonly #codec: StreamTexts;
  readonly #options: TextStreamOptions;
  /**
   * Tokens of the text emitted last, up to `#readAt`, which are the context for decoding the next; then tokens that have no text yet.
   * Bounded (P1).
   */
  #ids: number[];
  #readAt: number;
  #held = '';
  /** The token before the current one; undefined where there is none. */
  #previous: number | undefined;
  /** Bytes of the tokens after `#readAt`, while they are parts of a character; empty after one that is whole, else undefined. */
  #parts: Uint8Array | undefined;
  /** The stop string that ended the text. */
  stop: string | undefined;
  #numCharacters = 0;
  /** How the text that is decoded now is released. */
  #asked = { isLast: false, isSearched: false };

  constructor(codec: StreamTexts, promptTokens: Uint32Array, options: TextStreamOptions) {
    this.#codec = codec;
    this.#options = options;
    this.#ids = Array.from(promptTokens.subarray(-CONTEXT_TOKENS)).filter((id) => !options.hiddenTokens?.has(id));
    this.#readAt = this.#ids.length;
    this.#previous = this.#ids.at(-1);
  }

  /** Characters (code points) of all tokens so far, those that are held back included: where the next token begins. */
  get numCharacters(): number {
    return this.#numCharacters;
  }

  /**
   * Takes a token, and returns the text that is final after it; undefined: {@link onDecoded} will. `isSearched`: whether a stop string may
   * match here (false before `min_tokens`).
   */
  onToken(token: number, isSearched: boolean): string | undefined {
    if (this.#options.hiddenTokens?.has(token)) return '';
    const isAfterWhole = this.#isAfterWhole;
    const plain = isAfterWhole ? this.#codec.plainText(token) : undefined;
    this.#previous = token;
    if (plain !== undefined) {
      this.#ids = [token];
      this.#readAt = 1;
      this.#parts = undefined;
      return this.#release(plain, false, isSearched);
    }
    this.#ids.push(token);
    const text = isAfterWhole || this.#parts ? this.#withPart(token) : undefined;
    if (text !== undefined) return this.#release(text, false, isSearched);
    this.#parts = undefined;
    return this.#next(false, isSearched);
  }

  /** Returns the text that was held back, at the end of the output; undefined: {@link onDecoded} will. */
  onEnd(isSearched: boolean): string | undefined {
    return this.#next(true, isSearched);
  }

  /** Lists of token ids whose texts {@link onDecoded} needs, and whether special tokens are left out of them. */
  get undecoded(): { lists: readonly (readonly number[])[]; skipSpecialTokens: boolean } {
    return {
      lists: [this.#ids.slice(0, this.#readAt), this.#ids],
      skipSpecialTokens: this.#options.isSkippingSpecial && this.#options.hiddenTokens === undefined,
    };
  }

  /** Takes the texts of {@link undecoded}, and returns the text that is final now. */
  onDecoded(texts: readonly string[]): string {
    const { isLast, isSearched } = this.#asked;
    return this.#release(this.#added(texts, isLast), isLast, isSearched);
  }

  /** Whether no character is incomplete, and the text of a token that comes next does not depend on what is before it. */
  get #isAfterWhole(): boolean {
    if (this.#readAt < this.#ids.length) return false;
    const before = this.#previous;
    return this.#parts !== undefined || (before !== undefined && this.#codec.plainText(before) !== undefined);
  }

  /**
   * Takes a token as part of a character, and returns the text of its whole characters: empty while the last one is incomplete. Undefined
   * where that takes the tokenizer.
   */
  #withPart(token: number): string | undefined {
    const part = this.#codec.partOf(token);
    if (!part || this.#ids.length - this.#readAt >= MAX_UNFINISHED) return undefined;
    const bytes = new Uint8Array(Buffer.concat([this.#parts ?? NO_BYTES, part]));
    const text = charactersOf(bytes);
    if (text === undefined) {
      this.#parts = bytes;
      return isBeginOfText(bytes) ? '' : undefined;
    }
    if (text.endsWith(REPLACEMENT)) return undefined;
    this.#ids = this.#ids.slice(this.#readAt);
    this.#readAt = this.#ids.length;
    this.#parts = NO_BYTES;
    return text;
  }

  #next(isLast: boolean, isSearched: boolean): string | undefined {
    if (this.#ids.length === this.#readAt) return this.#release('', isLast, isSearched);
    this.#asked = { isLast, isSearched };
    return undefined;
  }

  /** Returns the text that the unfinished tokens add. */
  #added([before = '', after = '']: readonly string[], isLast: boolean): string {
    const numUnfinished = this.#ids.length - this.#readAt;
    const isComplete = !after.endsWith(REPLACEMENT) || isLast || numUnfinished >= MAX_UNFINISHED;
    if (after.length > before.length && isComplete) {
      this.#ids = this.#ids.slice(this.#readAt);
      this.#readAt = this.#ids.length;
      return after.slice(before.length);
    }
    // A token without text that completes none, such as a special token, is dropped; the context stays.
    const isNothing = after === before && before !== '' && !after.endsWith(REPLACEMENT);
    if (isNothing || numUnfinished >= MAX_UNFINISHED) this.#ids = this.#ids.slice(0, this.#readAt);
    return '';
  }

  #release(text: string, isLast: boolean, isSearched: boolean): string {
    this.#numCharacters += numCharactersOf(text);
    if (this.stop !== undefined) return '';
    const pending = this.#held + text;
    this.#held = '';
    if (!isSearched) return pending;
    const { stops, isStopIncluded } = this.#options;
    let end = Infinity;
    for (const stop of stops) {
      const at = pending.indexOf(stop);
      if (at < 0 || at >= end) continue;
      [end, this.stop] = [at, stop];
    }
    if (this.stop !== undefined) return pending.slice(0, end + (isStopIncluded ? this.stop.length : 0));
    if (isLast) return pending;
    const numHeld = Math.max(0, ...stops.map((stop) => overlap(pending, stop)));
    this.#held = pending.slice(pending.length - numHeld);
    return pending.slice(0, pending.length - numHeld);
  }
}

const NO_BYTES = new Uint8Array(0);

/** Whether bytes are whole characters and the beginning of another. */
function isBeginOfText(bytes: Uint8Array): boolean {
  try {
    new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes, { stream: true });
    return true;
  } catch {
    return false;
  }
}

/** Returns the number of code points in a text, the unit of text offsets, as in Python. */
export function numCharactersOf(text: string): number {
  let count = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    // The second half of a pair belongs to the first.
    if (unit < 0xdc00 || unit > 0xdfff) count++;
  }
  return count;
}

/** Returns the length of the longest suffix of `text` that is a proper prefix of `stop` (Knuth, Morris and Pratt, 1977). */
function overlap(text: string, stop: string): number {
  const table = borders(stop);
  let length = 0;
  for (let at = Math.max(0, text.length - stop.length + 1); at < text.length; at++) {
    while (length > 0 && text[at] !== stop[length]) length = table[length - 1] ?? 0;
    if (text[at] === stop[length]) length++;
  }
  return length;
}

/** Border tables by stop string. Beyond MAX_TABLES the oldest is removed (P1). */
const tables = new Map<string, Uint16Array>();
const MAX_TABLES = 4_096;

/** Returns, for each prefix of `stop`, the length of its longest border: a proper prefix that is also its suffix. */
function borders(stop: string): Uint16Array {
  const known = tables.get(stop);
  if (known) return known;
  const table = new Uint16Array(stop.length);
  for (let at = 1, length = 0; at < stop.length; at++) {
    while (length > 0 && stop[at] !== stop[length]) length = table[length - 1] ?? 0;
    if (stop[at] === stop[length]) length++;
    table[at] = length;
  }
  const [oldest] = tables.keys();
  if (tables.size >= MAX_TABLES && oldest !== undefined) tables.delete(oldest);
  tables.set(stop, table);
  return table;
}
