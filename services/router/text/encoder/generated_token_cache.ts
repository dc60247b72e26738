/**
 * Cache of the tokens that a model generated, for turns that the next prompt spells differently: the tokenizer would cut the same text into
 * other tokens, the template writes the message with other white space or other JSON, or the client leaves the reasoning out. The next prompt gets the generated tokens, and so hits the cached blocks of its own answer.
 *
 * A turn lies between two delimiters, the special tokens with which a template frames messages. It is found by all tokens up to the
 * delimiter before it, and by its text: the same text, or a text that reads as the same message.
 */
import type { AnswerMessage } from '../../../../shared/protocol/answers.ts';
import { xxh64, xxh64Stream } from '../../../../shared/base/xxh64.ts';
import { REPLACEMENT } from '../../../../shared/model/token_bytes.ts';
import { contentTurn, type ReadTurn, type TurnReader } from '../turn_reader.ts';
import type { Section } from './added_tokens.ts';
import { joined } from './encode_limits.ts';
import type { FastEncoder } from './fast_encoder.ts';

/**
 * A remembered turn. `prefix`: XXH64 of the `prefixLength` ids before the turn, the delimiter in front included. `text` and `ids` cover the
 * whole turn: the end of the prompt, and the answer. `headLength`: UTF-16 units of the text in front of the message, such as the role.
 */
export type Answer = Omit<AnswerMessage, 'model'>;

/**
 * Reasoning of a message that came back without one, in a prompt that is rendered a second time: where the template writes this, it would
 * have written the reasoning.
 */
export const ANY_REASONING = '\u{10fffd}';

/** Limits on the code units of all cached texts together, and on the number of spellings (P1). */
const MAX_CHARACTERS = 8 * 2 ** 20;
const MAX_SPELLINGS = 20_000;

interface Turn {
  /** Number of ids before the turn. */
  readonly prefixLength: number;
  readonly ids: Uint32Array;
  /** The text in front of the message, without white space at its end. */
  readonly head: string;
  readonly message: ReadTurn | undefined;
}

/**
 * Remembers the ids of generated turns by the tokens before them and by their text. Bounded by MAX_CHARACTERS and MAX_SPELLINGS, the
 * prefix that was used least recently first out (P1).
 */
export class GeneratedTokenCache {
  /** Turns by prefix, then by text. The prefix that was used last is last, so that eviction starts with the oldest. */
  readonly #turns = new Map<bigint, Map<string, Turn>>();
  /** Number of spellings by the number of ids before them. */
  readonly #lengths = new Map<number, number>();
  readonly #delimiters: ReadonlySet<number>;
  readonly #read: TurnReader;
  readonly #keepsReasoning: boolean;
  #numCharacters = 0;
  #count = 0;
  #hasReasoning = false;

  /**
   * @param delimiters ids of the tokens that frame messages
   * @param read reads two spellings of a turn as the same message
   * @param keepsReasoning whether messages are the same that differ in their reasoning alone
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

  learn({ prefix, prefixLength, text, ids, headLength }: Answer): void {
    const message = this.#read(text.slice(headLength));
    this.#hasReasoning ||= message !== undefined && message.reasoning !== '';
    this.#keep(prefix, text, { prefixLength, ids, head: text.slice(0, headLength).trimEnd(), message });
  }

  #keep(prefix: bigint, spelling: string, turn: Turn): void {
    const known = this.#turns.get(prefix) ?? new Map<string, Turn>();
    // Inserting the prefix again moves it to the end, where eviction reaches it last.
    this.#turns.delete(prefix);
    this.#turns.set(prefix, known);
    if (known.has(spelling)) return;
    known.set(spelling, turn);
    this.#counted(spelling, turn, 1);
    for (const [oldest, texts] of this.#turns) {
      for (const [one, its] of texts) {
        if (this.#numCharacters <= MAX_CHARACTERS && this.#count <= MAX_SPELLINGS) return;
        texts.delete(one);
        this.#counted(one, its, -1);
      }
      this.#turns.delete(oldest);
    }
  }

  #counted(text: string, { prefixLength }: Turn, by: 1 | -1): void {
    this.#count += by;
    this.#numCharacters += by * text.length;
    const count = (this.#lengths.get(prefixLength) ?? 0) + by;
    if (count > 0) this.#lengths.set(prefixLength, count);
    else this.#lengths.delete(prefixLength);
  }

  /**
   * Whether a cached turn may follow one of the delimiters in a prompt's ids, as the tokenizer makes them. Most prompts have none, and their
   * text need not be searched.
   */
  mayContinue(ids: Uint32Array): boolean {
    const isKnown = (length: number): boolean =>
      (length === 0 || this.#delimiters.has(ids[length - 1] ?? -1)) &&
      this.#turns.has(xxh64(bytesOf(ids.subarray(0, length))));
    if (this.#lengths.size < ids.length) {
      for (const length of this.#lengths.keys()) if (length <= ids.length && isKnown(length)) return true;
      return false;
    }
    for (let length = 0; length <= ids.length; length++) if (this.#lengths.has(length) && isKnown(length)) return true;
    return false;
  }

  /**
   * Returns the ids of a text's sections, with cached turns as they were generated. `marked`: sections of the same chat with
   * {@link ANY_REASONING} in each message that has no reasoning; undefined when there is none.
   */
  encode(
    sections: readonly Section[],
    before: readonly number[],
    encoder: FastEncoder,
    marked?: readonly Section[],
  ): Uint32Array[] {
    const hash = xxh64Stream();
    const parts: Uint32Array[] = [];
    const add = (ids: Uint32Array): void => {
      parts.push(ids);
      hash.update(bytesOf(ids));
    };
    add(Uint32Array.from(before));
    const turns = this.#split(sections);
    const others = this.#aligned(turns, marked);
    let prefix = hash.digest();
    for (const [at, turn] of turns.entries()) {
      add(this.#generated(prefix, turn, others?.[at]) ?? encoder.encodeSections(turn));
      prefix = hash.digest();
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

  /** Returns the ids of a turn as they were generated; undefined when they are not known. */
  #generated(
    prefix: bigint,
    turn: readonly Section[],
    marked: readonly Section[] | undefined,
  ): Uint32Array | undefined {
    const known = this.#turns.get(prefix);
    if (!known) return undefined;
    const text = textOf(turn);
    const found =
      known.get(text) ?? this.#sameMessage(known, text) ?? (marked && this.#sameMessage(known, textOf(marked)));
    if (found) this.#keep(prefix, text, found);
    return found?.ids;
  }

  #sameMessage(known: ReadonlyMap<string, Turn>, text: string): Turn | undefined {
    const reads = new Map<string, ReadTurn | undefined>();
    for (const turn of new Set(known.values())) {
      const { head, message } = turn;
      if (!message || !text.startsWith(head)) continue;
      if (!reads.has(head)) reads.set(head, this.#read(text.slice(head.length)));
      const read = reads.get(head);
      if (read?.rest !== message.rest) continue;
      if (this.#keepsReasoning) return turn;
      if (read.hasBlock !== message.hasBlock) continue;
      const isAny = read.reasoning === ANY_REASONING && message.reasoning !== '';
      if (isAny || read.reasoning === message.reasoning) return turn;
    }
    return undefined;
  }
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
  readonly prefix: bigint;
  readonly prefixLength: number;
  /** Prompt tokens after the last delimiter. */
  readonly tail: Uint32Array;
  readonly answer: Uint32Array;
}

/** A longer answer, or end of a prompt, is not remembered. */
const MAX_TOKENS = 32_768;

/**
 * Returns the tokens to remember, up to the first delimiter of the output; undefined when there are none, or too many. `delimiters`: ids
 * of the tokens that frame messages.
 */
export function generatedTokens(
  prompt: Uint32Array,
  generated: readonly number[],
  delimiters: ReadonlySet<number>,
): GeneratedTokens | undefined {
  let start = prompt.length;
  while (start > 0 && !delimiters.has(prompt[start - 1] ?? -1)) {
    start--;
    if (prompt.length - start > MAX_TOKENS) return undefined;
  }
  const end = generated.findIndex((id) => delimiters.has(id));
  const answer = Uint32Array.from(end < 0 ? generated : generated.slice(0, end));
  if (answer.length === 0 || answer.length > MAX_TOKENS) return undefined;
  return { prefix: xxh64(bytesOf(prompt.subarray(0, start))), prefixLength: start, tail: prompt.slice(start), answer };
}

/**
 * Returns the turn to remember. Undefined when every spelling of it gives the same ids anyway, when its text does not stand for these ids
 * alone, or when it breaks off within a part.
 */
export function answerOf(
  { prefix, prefixLength, tail, answer }: GeneratedTokens,
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
  const body = text.slice(headLength);
  const message = read(body);
  if (!message) return undefined;
  const own = encoded(text);
  const content = text.slice(keepsReasoning ? headLength : tailText.length);
  const isPlain = content.trim() === content && message.rest === contentTurn(content).rest && message.reasoning === '';
  if (isPlain && isSame(own, ids)) return undefined;
  // Half a character is text that no client can send back.
  if (text.includes(REPLACEMENT) || own.length === 0 || decode([...own]) !== text) return undefined;
  return { prefix, prefixLength, text, ids, headLength };
}

function isSame(a: Uint32Array, b: Uint32Array): boolean {
  return a.length === b.length && a.every((id, i) => b[i] === id);
}
