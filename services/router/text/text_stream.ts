/** The text of one stream of tokens, and its stop strings, wherever tokens split them. */
import { REPLACEMENT } from './token_bytes.ts';

/** Tokens of the prompt that the first output token is decoded with, so that it gets its leading space or not. */
const CONTEXT_TOKENS = 6;
/** Tokens that give no text are kept for what may complete them; no character is split over more than this. */
const MAX_UNFINISHED = 16;

/** A tokenizer's decoder, as far as a stream needs it. */
export interface TokenText {
  /** One text per list of ids. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]>;
  /** The text of a token that is the same wherever it stands; undefined where it depends, or is not known yet. */
  plainText(id: number): string | undefined;
}

/** Options of a stream's text: its stop strings, and whether special tokens are left out. */
export interface TextStreamOptions {
  readonly stops: readonly string[];
  /** The stop string stays part of the text. */
  readonly isStopIncluded: boolean;
  readonly isSkippingSpecial: boolean;
}

/**
 * Tokens to text, pretoken by pretoken: never half a character, never text behind a stop string, nothing that could still become
 * one.
 */
export class TextStream {
  readonly #codec: TokenText;
  readonly #options: TextStreamOptions;
  /** The last pretoken's tokens, which give the next one its context, and those that have given no text yet. Bounded (P1). */
  #ids: number[];
  #readAt: number;
  #held = '';
  /** The token before. */
  #previous: number | undefined;
  /** The stop string that ended the text. */
  stop: string | undefined;
  #numCharacters = 0;

  constructor(codec: TokenText, promptTokens: Uint32Array, options: TextStreamOptions) {
    this.#codec = codec;
    this.#options = options;
    this.#ids = Array.from(promptTokens.subarray(-CONTEXT_TOKENS));
    this.#readAt = this.#ids.length;
  }

  /** Characters (code points) of all tokens so far, those that are held back included: where the next token begins. */
  get numCharacters(): number {
    return this.#numCharacters;
  }

  /** Text that is certain now. A stop string counts only in the text of tokens that are `isSearched`. */
  async push(token: number, isSearched: boolean): Promise<string> {
    const plain = this.#plainText(token);
    this.#previous = token;
    if (plain !== undefined) {
      this.#ids = [token];
      this.#readAt = 1;
      return this.#release(plain, false, isSearched);
    }
    this.#ids.push(token);
    return this.#release(await this.#next(false), false, isSearched);
  }

  /** Returns the text that was held back, at the end of the output. */
  async flush(isSearched: boolean): Promise<string> {
    return this.#release(await this.#next(true), true, isSearched);
  }

  /** Between whole characters, and after one that changes nothing behind it, most tokens need no tokenizer. */
  #plainText(token: number): string | undefined {
    const before = this.#previous;
    if (before === undefined || this.#readAt < this.#ids.length) return undefined;
    return this.#codec.plainText(before) === undefined ? undefined : this.#codec.plainText(token);
  }

  async #next(isLast: boolean): Promise<string> {
    const numUnfinished = this.#ids.length - this.#readAt;
    if (numUnfinished === 0) return '';
    const [before = '', after = ''] = await this.#codec.decode(
      [this.#ids.slice(0, this.#readAt), this.#ids],
      this.#options.isSkippingSpecial,
    );
    const isComplete = !after.endsWith(REPLACEMENT) || isLast || numUnfinished >= MAX_UNFINISHED;
    if (after.length > before.length && isComplete) {
      this.#ids = this.#ids.slice(this.#readAt);
      this.#readAt = this.#ids.length;
      return after.slice(before.length);
    }
    // Special tokens, for instance, give nothing and complete nothing: the context stays, they go.
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

/** Code points: an offset counts them, as Python's texts do. */
export function numCharactersOf(text: string): number {
  let count = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    // The second half of a pair belongs to the first.
    if (unit < 0xdc00 || unit > 0xdfff) count++;
  }
  return count;
}

/** Length of the longest end of `text` that begins `stop`, and is not all of it: Knuth, Morris and Pratt, 1977. */
function overlap(text: string, stop: string): number {
  const table = borders(stop);
  let length = 0;
  for (let at = Math.max(0, text.length - stop.length + 1); at < text.length; at++) {
    while (length > 0 && text[at] !== stop[length]) length = table[length - 1] ?? 0;
    if (text[at] === stop[length]) length++;
  }
  return length;
}

/** The tables of the stop strings that are in use, oldest first out (P1). */
const tables = new Map<string, Uint16Array>();
const MAX_TABLES = 4_096;

/** For each beginning of `stop`, the length of its longest border. */
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
