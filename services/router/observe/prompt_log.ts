/**
 * Prompts and answers of finished requests, which only a router with `--log-prompts` keeps. They are shown with one request, never in
 * lists, metrics or traces. Bounded (P1): MAX_REQUESTS, the oldest go first, and MAX_BYTES of each text: 64 MiB in all.
 */
import type { LoggedTexts } from '../../../shared/protocol/request_detail.ts';

const MAX_REQUESTS = 1_000;
/** Bytes of a text as UTF-8, and four times the token ids of a list, that are kept. */
export const MAX_TEXT_BYTES = 16 << 10;
const MAX_IDS = MAX_TEXT_BYTES / 4;

/** A prompt or an answer: its text, or its token ids where it has no text. */
export type LoggedText = LoggedTexts['prompt' | 'answer'];

/** The texts of the last requests, by the id of the request. */
export class PromptLog {
  readonly #texts = new Map<string, LoggedTexts>();
  readonly #bytes = Buffer.alloc(MAX_TEXT_BYTES);
  readonly #encoder = new TextEncoder();

  /** Keeps prompt and answer of a request that has ended, as much of them as is allowed. */
  add(id: string, prompt: LoggedText, answer: LoggedText): void {
    const [keptPrompt, keptAnswer] = [this.#start(prompt), this.#start(answer)];
    const cut = [
      ...(keptPrompt.length < prompt.length ? [noteOf('prompt', prompt)] : []),
      ...(keptAnswer.length < answer.length ? [noteOf('answer', answer)] : []),
    ];
    this.#texts.set(id, { prompt: keptPrompt, answer: keptAnswer, cut });
    const [oldest] = this.#texts.keys();
    if (this.#texts.size > MAX_REQUESTS && oldest !== undefined) this.#texts.delete(oldest);
  }

  /** Returns the texts of a request; undefined when they are not kept. */
  of(id: string): LoggedTexts | undefined {
    return this.#texts.get(id);
  }

  /** Returns the start of a text that is kept, as a copy: a slice would keep the whole of it in memory. */
  #start(text: LoggedText): LoggedText {
    if (typeof text !== 'string') return text.slice(0, MAX_IDS);
    const { written } = this.#encoder.encodeInto(text, this.#bytes);
    return this.#bytes.toString('utf8', 0, written);
  }
}

function noteOf(what: string, text: LoggedText): string {
  return typeof text === 'string'
    ? `of the ${what} the first ${MAX_TEXT_BYTES} bytes are kept`
    : `of the ${what} the first ${MAX_IDS} token ids are kept`;
}
