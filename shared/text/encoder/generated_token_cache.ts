/**
 * Cache of the tokens that a model generated, for turns that the next prompt spells differently: the tokenizer would cut the same text into
 * other tokens, the template writes the message with other white space or other JSON, or the client leaves the reasoning out. The next prompt gets the generated tokens, and so hits the cached blocks of its own answer.
 *
 * A turn lies between two delimiters, the special tokens with which a template frames messages. It is found by all tokens up to the
 * delimiter before it, and by its text: the same text, or a text that reads as the same message.
 */
import { Recent } from '../../base/recent.ts';
import { xxh64, xxh64Stream } from '../../base/xxh64.ts';
import { REPLACEMENT } from '../../model/token_bytes.ts';
import { contentTurn, type ReadTurn, type TurnReader } from '../turn_reader.ts';
import type { Section } from './added_tokens.ts';
import { joined } from './encode_limits.ts';
import type { FastEncoder } from './fast_encoder.ts';
import { ownCopy } from './text_chunks.ts';

/**
 * A remembered turn. `scope`: number of the scope of its request, in which alone it is used. `prefix`: XXH64 of the `prefixLength` ids before
 * the turn, the delimiter in front included. `text` and `ids` cover the whole turn: the end of the prompt, and the answer. `headLength`: UTF-16
 * units of the text in front of the message, such as the role.
 */
export interface Answer {
  readonly scope: bigint;
  readonly prefix: bigint;
  readonly prefixLength: number;
  readonly headLength: number;
  readonly text: string;
  readonly ids: Uint32Array;
}

/**
 * Reasoning of a message that came back without one, in a prompt that is rendered a second time: where the template writes this, it would
 * have written the reasoning.
 */
export const ANY_REASONING = '\u{10fffd}';

/** Bounds (P1) of the size of all turns, in units of two bytes (a UTF-16 unit is one, a token id two), and of their number. */
const MAX_SIZE = 16 * 2 ** 20;
const MAX_TURNS = 20_000;
/** Turns at one prefix whose message is compared (P1), the newest first. */
const MAX_COMPARED = 16;
/** Turns of prompts whose reading is kept, and the code units of all of them (P1). */
const MAX_READ = 4_096;
const MAX_READ_CHARACTERS = 4 * 2 ** 20;

interface Turn {
  /** Number of ids before the turn. */
  readonly prefixLength: number;
  readonly ids: Uint32Array;
  /** The text in front of the message, without white space at its end. */
  readonly head: string;
  /** Length of `head` with that white space. */
  readonly headLength: number;
  readonly message: ReadTurn | undefined;
}

/** A prompt as it is encoded with cached turns. */
export interface CachedPrompt {
  /** Number of its scope. */
  readonly scope: bigint;
  readonly sections: readonly Section[];
  /** Ids that the tokenizer puts in front. */
  readonly before: readonly number[];
  /** Whether a template rendered it; the turns of other texts are used only when they are the same text. */
  readonly isChat: boolean;
  /** Sections of the same chat with {@link ANY_REASONING} in each message with calls that has no reasoning. */
  readonly marked?: readonly Section[] | undefined;
}

/**
 * Remembers the ids of generated turns by the tokens before them and by their text. Bounded by MAX_SIZE and MAX_TURNS, the prefix that was
 * used least recently first out (P1).
 */
export class GeneratedTokenCache {
  /** Turns by scope and prefix ({@link keyOf}), then by text. The prefix that was used last is last, so that eviction starts with the oldest. */
  readonly #turns = new Map<bigint, Map<string, Turn>>();
  /** Number of turns by the number of ids before them. */
  readonly #lengths = new Map<number, number>();
  readonly #reads = new Recent<string, ReadTurn | undefined>(MAX_READ, MAX_READ_CHARACTERS);
  readonly #delimiters: ReadonlySet<number>;
  readonly #read: TurnReader;
  readonly #keepsReasoning: boolean;
  #size = 0;
  #count = 0;
  #hasReasoning = false;

  /**
   * @param delimiters ids of the tokens that frame messages
   * @param read reads two spellings of a turn as the same message
   * @param keepsReasoning whether a message that has no reasoning is the same as one that has
   */
  constructor(delimiters: ReadonlySet<number>, read: TurnReader, keepsReasoning = false) {
    [this.#delimiters, this.#read, this.#keepsReasoning] = [delimiters, read, keepsReasoning];
  }

  get isEmpty(): boolean {
    return this.#count === 0;
  }

  /** Whether {@link ANY_REASONING} may stand for the reasoning of a turn. */
  get needsMarks(): boolean {
    return this.#hasReasoning && !this.#keepsReasoning;
  }

  /** Remembers a turn, and evicts the turns whose prefixes were inserted longest ago when there are too many. */
  learn({ scope, prefix, prefixLength, text, ids, headLength }: Answer): void {
    const key = keyOf(scope, prefix);
    const known = this.#turns.get(key) ?? new Map<string, Turn>();
    // Inserting the prefix again moves it to the end, where eviction reaches it last.
    this.#turns.delete(key);
    this.#turns.set(key, known);
    if (known.has(text)) return;
    const head = text.slice(0, headLength);
    // A head that does not end with white space may be the beginning of a message that was continued: its text counts as it is.
    const message = head.trimEnd() === head && head !== '' ? undefined : this.#read(text.slice(headLength));
    this.#hasReasoning ||= message !== undefined && message.reasoning !== '';
    const turn = { prefixLength, ids, head: head.trimEnd(), headLength, message };
    known.set(text, turn);
    this.#counted(text, turn, 1);
    for (const [oldest, texts] of this.#turns) {
      for (const [one, its] of texts) {
        if (this.#size <= MAX_SIZE && this.#count <= MAX_TURNS) return;
        texts.delete(one);
        this.#counted(one, its, -1);
      }
      this.#turns.delete(oldest);
    }
  }

  /** Returns all cached turns as they were learned, the prefix that was used least recently first. */
  answers(): Answer[] {
    return [...this.#turns].flatMap(([key, texts]) => {
      const [scope, prefix] = [key >> 64n, BigInt.asUintN(64, key)];
      return [...texts].map(([text, { prefixLength, ids, headLength }]) => {
        return { scope, prefix, prefixLength, text, ids, headLength };
      });
    });
  }

  #counted(text: string, { prefixLength, ids, message }: Turn, by: 1 | -1): void {
    this.#count += by;
    this.#size += by * (text.length + 2 * ids.length + (message ? message.reasoning.length + message.rest.length : 0));
    const count = (this.#lengths.get(prefixLength) ?? 0) + by;
    if (count > 0) this.#lengths.set(prefixLength, count);
    else this.#lengths.delete(prefixLength);
  }

  /**
   * Whether a cached turn of a scope may follow one of the delimiters in a prompt's ids, as the tokenizer makes them. Most prompts have none,
   * and their text need not be searched.
   */
  mayContinue(ids: Uint32Array, scope: bigint): boolean {
    const lengths =
      this.#lengths.size < ids.length
        ? [...this.#lengths.keys()].filter((length) => length <= ids.length).sort((a, b) => a - b)
        : Array.from(ids.keys(), (at) => at + 1).filter((length) => this.#lengths.has(length));
    const hash = xxh64Stream();
    let hashed = 0;
    for (const length of lengths) {
      if (!this.#delimiters.has(ids[length - 1] ?? -1)) continue;
      hash.update(bytesOf(ids.subarray(hashed, length)));
      hashed = length;
      if (this.#turns.has(keyOf(scope, hash.digest()))) return true;
    }
    return false;
  }

  /** Returns the ids of a prompt, with cached turns as they were generated. */
  encode({ scope, sections, before, isChat, marked }: CachedPrompt, encoder: FastEncoder): Uint32Array[] {
    const hash = xxh64Stream();
    const parts: Uint32Array[] = [];
    const add = (ids: Uint32Array): void => {
      parts.push(ids);
      hash.update(bytesOf(ids));
    };
    add(Uint32Array.from(before));
    const turns = this.#split(sections);
    const others = this.#aligned(turns, marked);
    for (const [at, turn] of turns.entries()) {
      const key = keyOf(scope, hash.digest());
      const known = this.#isDelimiter(turn[0]) ? undefined : this.#turns.get(key);
      const text = known ? textOf(turn) : '';
      // The last turn of a prompt is open: what stands there is no message yet.
      const isMessage = isChat && at + 1 < turns.length;
      const other = others?.[at];
      const found =
        known?.get(text) ?? (known && isMessage ? this.#sameMessage(known, text, other && textOf(other)) : undefined);
      if (known && found) {
        this.#turns.delete(key);
        this.#turns.set(key, known);
      }
      add(found?.ids ?? encoder.encodeSections(turn));
    }
    return parts;
  }

  /** Splits sections into delimiters, each alone, and the turns between them. */
  #split(sections: readonly Section[]): Section[][] {
    const turns: Section[][] = [];
    let isOpen = false;
    for (const section of sections) {
      const isDelimiter = this.#isDelimiter(section);
      if (isDelimiter || !isOpen) turns.push([section]);
      else turns.at(-1)?.push(section);
      isOpen = !isDelimiter;
    }
    return turns;
  }

  #isDelimiter(section: Section | undefined): boolean {
    return section?.added !== undefined && this.#delimiters.has(section.added.id);
  }

  /** Returns the turns of the marked text when they correspond to the turns one by one. */
  #aligned(turns: readonly Section[][], marked: readonly Section[] | undefined): Section[][] | undefined {
    const others = marked && this.#split(marked);
    if (others?.length !== turns.length) return undefined;
    const isSameFrame = ([one]: Section[], [other]: Section[] = []): boolean =>
      this.#isDelimiter(one) ? one?.added?.id === other?.added?.id : !this.#isDelimiter(other);
    return turns.every((turn, at) => isSameFrame(turn, others[at])) ? others : undefined;
  }

  /**
   * Returns the turn that is the same message as a text, or as its marked form. Where the text leaves open which reasoning it had, and several
   * turns differ in theirs, none is.
   */
  #sameMessage(known: ReadonlyMap<string, Turn>, text: string, marked: string | undefined): Turn | undefined {
    const turns = [...known.values()].slice(-MAX_COMPARED).reverse();
    const read = (spelling: string, { head }: Turn): ReadTurn | undefined =>
      spelling.startsWith(head) ? this.#readOf(spelling.slice(head.length)) : undefined;
    const isSame = (turn: Turn, spelled: ReadTurn | undefined): boolean =>
      spelled !== undefined && spelled.rest === turn.message?.rest;
    const equal = turns.find((turn) => {
      const spelled = read(text, turn);
      const isAlike = spelled?.reasoning === turn.message?.reasoning && spelled?.hasBlock === turn.message?.hasBlock;
      return isAlike && isSame(turn, spelled);
    });
    if (equal) return equal;
    const open = turns.filter((turn) => {
      const spelled = read(this.#keepsReasoning ? text : (marked ?? ''), turn);
      return spelled?.reasoning === (this.#keepsReasoning ? '' : ANY_REASONING) && isSame(turn, spelled);
    });
    // An empty block is no reasoning that was left out, unless it is to be kept.
    const fitting = open.filter(({ message }) => this.#keepsReasoning || message?.reasoning !== '');
    const isOne = new Set(open.map(({ message }) => message?.reasoning)).size === 1;
    return isOne ? fitting[0] : undefined;
  }

  #readOf(text: string): ReadTurn | undefined {
    if (this.#reads.has(text)) return this.#reads.get(text);
    const read = this.#read(text);
    // A part of a prompt would keep all of it in memory.
    this.#reads.set(ownCopy(text), read, text.length);
    return read;
  }
}

/** Returns the key of a prefix within a scope. Both are compared: a prefix of XXH64 alone can be made to equal another scope's. */
function keyOf(scope: bigint, prefix: bigint): bigint {
  return scope === 0n ? prefix : (scope << 64n) | prefix;
}

function textOf(sections: readonly Section[]): string {
  return sections.map(({ text }) => text).join('');
}

function bytesOf(ids: Uint32Array): Uint8Array {
  return new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength);
}

/**
 * Generated tokens as the control thread sends them to the thread that may remember them. The prompt's start is sent only as a hash,
 * which keeps the message short.
 */
export interface GeneratedTokens {
  readonly scope: bigint;
  readonly prefix: bigint;
  readonly prefixLength: number;
  /** Prompt tokens after the last delimiter. */
  readonly tail: Uint32Array;
  readonly answer: Uint32Array;
}

/** A longer answer, or end of a prompt, is not remembered. */
const MAX_TOKENS = 32_768;

/**
 * Returns the tokens to remember, up to the first delimiter of the output; undefined when there are none, too many,
 * or no delimiter before them. `delimiters`: ids of the tokens that frame messages.
 */
export function generatedTokens(
  prompt: Uint32Array,
  generated: readonly number[],
  delimiters: ReadonlySet<number>,
  scope: bigint,
): GeneratedTokens | undefined {
  let start = prompt.length;
  while (start > 0 && !delimiters.has(prompt[start - 1] ?? -1)) {
    start--;
    if (prompt.length - start > MAX_TOKENS) return undefined;
  }
  if (start === 0) return undefined;
  const end = generated.findIndex((id) => delimiters.has(id));
  const answer = Uint32Array.from(end < 0 ? generated : generated.slice(0, end));
  if (answer.length === 0 || answer.length > MAX_TOKENS) return undefined;
  const prefix = xxh64(bytesOf(prompt.subarray(0, start)));
  return { scope, prefix, prefixLength: start, tail: prompt.slice(start), answer };
}

/**
 * Returns the turn to remember. Undefined when every spelling of it gives the same ids anyway, when its text does not stand for these ids
 * alone, or when it breaks off within a part.
 */
export function answerOf(
  { scope, prefix, prefixLength, tail, answer }: GeneratedTokens,
  encoder: FastEncoder,
  decode: (ids: readonly number[]) => string,
  read: TurnReader,
  keepsReasoning = false,
): Answer | undefined {
  const encoded = (text: string): Uint32Array =>
    encoder.encodeSections(encoder.sections(text).map((section) => ({ ...section, isFirst: false })));
  const tailText = tail.length === 0 ? '' : decode([...tail]);
  // The client sent ids that no text encodes to: requests of other clients must not get them.
  if (!isSame(encoded(tailText), tail)) return undefined;
  const ids = joined([tail, answer]);
  const text = decode([...ids]);
  const [head] = encoder.sections(tailText);
  const headLength = head && !head.added ? head.text.length : 0;
  if (!text.startsWith(tailText)) return undefined;
  const body = text.slice(headLength);
  const message = read(body);
  // A prompt that has the beginning of the message itself has text that the model did not generate.
  if (!message || !isEmptyTurn(read(tailText.slice(headLength)))) return undefined;
  const own = encoded(text);
  const content = text.slice(tailText.length);
  const isPlain = content.trim() === content && message.rest === contentTurn(content).rest && message.reasoning === '';
  if (isPlain && !keepsReasoning && isSame(own, ids)) return undefined;
  // Half a character is text that no client can send back.
  if (text.includes(REPLACEMENT) || own.length === 0 || decode([...own]) !== text) return undefined;
  return { scope, prefix, prefixLength, text, ids, headLength };
}

/** Whether the turn has no content: the template may have opened a reasoning block, or written an empty one. */
function isEmptyTurn(turn: ReadTurn | undefined): boolean {
  return turn?.reasoning === '' && turn.rest === contentTurn('').rest;
}

function isSame(a: Uint32Array, b: Uint32Array): boolean {
  return a.length === b.length && a.every((id, i) => b[i] === id);
}
