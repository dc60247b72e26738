/**
 * Cache of tokens that a model generated, for texts that the tokenizer would encode differently. A chat's next turn uses the generated
 * tokens, and so hits the cached blocks of its own answer. An answer is found by all tokens up to the last added token before it, and
 * by the text from there on.
 */
import type { AnswerMessage } from '../../../../shared/protocol/answers.ts';
import { xxh64Stream } from '../../../../shared/base/xxh64.ts';
import { REPLACEMENT } from '../../../../shared/model/token_bytes.ts';
import type { Section } from './added_tokens.ts';
import type { FastEncoder } from './fast_encoder.ts';

/**
 * A remembered section of text. `prefix`: XXH64 of all ids before the section, the added token in front included. `text` and `ids`
 * cover the whole section: the end of the prompt, and the answer.
 */
export type Answer = Omit<AnswerMessage, 'model'>;

/** Limits on the code units of all cached texts together, and on the number of answers (P1). */
const MAX_CHARACTERS = 8 * 2 ** 20;
const MAX_ANSWERS = 20_000;

/**
 * Remembers the ids of generated answers by the tokens before them and by their text. Bounded by MAX_CHARACTERS and MAX_ANSWERS,
 * oldest prefix first out (P1).
 */
export class GeneratedTokenCache {
  /** Ids by prefix, then by text. The prefix with the most recently learned answer is last, so that eviction starts with the oldest. */
  readonly #answers = new Map<bigint, Map<string, Uint32Array>>();
  /** How many remembered answers have a text, by text. */
  readonly #numOf = new Map<string, number>();
  #numCharacters = 0;
  #count = 0;

  get isEmpty(): boolean {
    return this.#count === 0;
  }

  /** Whether one of the sections may be a cached answer. Most texts have none, and are encoded without a lookup. */
  mayHave(sections: readonly Section[]): boolean {
    return sections.some(({ text, added }) => !added && this.#numOf.has(text));
  }

  #counted(text: string, by: 1 | -1): void {
    this.#count += by;
    this.#numCharacters += by * text.length;
    const count = (this.#numOf.get(text) ?? 0) + by;
    if (count > 0) this.#numOf.set(text, count);
    else this.#numOf.delete(text);
  }

  learn({ prefix, text, ids }: Answer): void {
    const known = this.#answers.get(prefix) ?? new Map<string, Uint32Array>();
    if (known.has(text)) return;
    // Inserting the prefix again moves it to the end, where eviction reaches it last.
    this.#answers.delete(prefix);
    this.#answers.set(prefix, known.set(text, ids));
    this.#counted(text, 1);
    for (const [oldest, texts] of this.#answers) {
      for (const one of texts.keys()) {
        if (this.#numCharacters <= MAX_CHARACTERS && this.#count <= MAX_ANSWERS) return;
        texts.delete(one);
        this.#counted(one, -1);
      }
      this.#answers.delete(oldest);
    }
  }

  /** Returns the ids of a text's sections, with cached answers as they were generated. */
  encode(sections: readonly Section[], before: readonly number[], encoder: FastEncoder): Uint32Array[] {
    const hash = xxh64Stream();
    const first = Uint32Array.from(before);
    const parts: Uint32Array[] = [first];
    hash.update(bytesOf(first));
    let prefix = hash.digest();
    for (const section of sections) {
      const answers = section.added ? undefined : this.#answers.get(prefix);
      const ids = answers?.get(section.text) ?? encoder.encodeSection(section);
      parts.push(ids);
      hash.update(bytesOf(ids));
      if (section.added) prefix = hash.digest();
    }
    return parts;
  }
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
  /** Prompt tokens after the last added token. */
  readonly tail: Uint32Array;
  readonly answer: Uint32Array;
}

/** A longer answer, or end of a prompt, is not remembered. */
const MAX_TOKENS = 32_768;

/**
 * Returns the tokens to remember, up to the first added token of the output; undefined when there are none, or too many. `added`: ids
 * of the added tokens that split a text.
 */
export function generatedTokens(
  prompt: Uint32Array,
  generated: readonly number[],
  added: ReadonlySet<number>,
): GeneratedTokens | undefined {
  let start = prompt.length;
  while (start > 0 && !added.has(prompt[start - 1] ?? -1)) {
    start--;
    if (prompt.length - start > MAX_TOKENS) return undefined;
  }
  const end = generated.findIndex((id) => added.has(id));
  const answer = Uint32Array.from(end < 0 ? generated : generated.slice(0, end));
  if (answer.length === 0 || answer.length > MAX_TOKENS) return undefined;
  const hash = xxh64Stream();
  hash.update(bytesOf(prompt.subarray(0, start)));
  return { prefix: hash.digest(), tail: prompt.slice(start), answer };
}

/**
 * Returns the answer to remember. Undefined when the tokenizer encodes its text to the same ids anyway, or when the text does not
 * stand for these ids alone.
 */
export function answerOf(
  { prefix, tail, answer }: GeneratedTokens,
  encoder: FastEncoder,
  decode: (ids: readonly number[]) => string,
): Answer | undefined {
  // The client sent ids that no text encodes to: requests of other clients must not get them.
  if (
    tail.length > 0 &&
    !isSame(encoder.encodeSection({ text: decode([...tail]), added: undefined, isFirst: false }), tail)
  )
    return undefined;
  const ids = new Uint32Array(tail.length + answer.length);
  ids.set(tail);
  ids.set(answer, tail.length);
  const text = decode([...ids]);
  const section = { text, added: undefined, isFirst: false };
  const own = encoder.encodeSection(section);
  if (isSame(own, ids)) return undefined;
  const isOneSection = encoder.sections(text).length === 1;
  // Half a character is text that no client can send back.
  if (!isOneSection || text.includes(REPLACEMENT) || own.length === 0 || decode([...own]) !== text) return undefined;
  return { prefix, text, ids };
}

function isSame(a: Uint32Array, b: Uint32Array): boolean {
  return a.length === b.length && a.every((id, i) => b[i] === id);
}
