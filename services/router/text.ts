/**
 * Text in, token ids out, and back. Asynchronous, because a thread of its own does it; a model folder without a tokenizer
 * serves token ids only.
 */
import { Worker } from 'node:worker_threads';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { WorkerCalls } from '../../shared/base/worker_calls.ts';
import { ModelError, type ModelFolder } from '../../shared/model/model_folder.ts';
import type { TokenizerMethods } from './tokenizer_worker.ts';

/** A longer prompt goes where it holds up no short one: tokenising takes a millisecond per 700 characters. */
const LONG_CHARACTERS = 32_768;

/**
 * Three threads: the text of streams that run waits for nothing else; short prompts wait for no long one; and what clients ask of
 * /tokenize and /detokenize, however much, waits with the long ones.
 */
interface Workers {
  readonly streams: WorkerCalls<TokenizerMethods>;
  readonly prompts: WorkerCalls<TokenizerMethods>;
  readonly long: WorkerCalls<TokenizerMethods>;
}

export class TextCodec {
  readonly #workers: Workers | undefined;
  /** Longer text cannot fit the context, and is not tokenised to find out. */
  readonly #maxCharacters: number;

  private constructor(workers: Workers | undefined, maxCharacters: number) {
    this.#workers = workers;
    this.#maxCharacters = maxCharacters;
  }

  /** `maxTokens`: of the longest context. @throws ModelError when tokenizer.json or the template cannot be used. */
  static async open(folder: ModelFolder, maxTokens: number, onDeath: (error: Error) => void): Promise<TextCodec> {
    if (!folder.hasTokenizer) return new TextCodec(undefined, 0);
    const start = (): Promise<WorkerCalls<TokenizerMethods>> => startTokenizer(folder, onDeath);
    const [streams, prompts, long] = await Promise.all([start(), start(), start()]);
    const longest = await long.call('longestToken', undefined);
    return new TextCodec({ streams, prompts, long }, maxTokens * longest);
  }

  get hasTokenizer(): boolean {
    return this.#workers !== undefined;
  }

  #own(): Workers {
    if (this.#workers) return this.#workers;
    throw new Failure(
      'invalid_request',
      'this model has no tokenizer: send the prompt as token ids to /v1/completions',
    );
  }

  #encoder(characters: number): WorkerCalls<TokenizerMethods> {
    const { prompts, long } = this.#own();
    return characters > LONG_CHARACTERS ? long : prompts;
  }

  /** @throws Failure `context_too_long` for text that cannot fit whatever its tokens are. */
  async encode(text: string, addSpecialTokens: boolean, signal: AbortSignal): Promise<number[]> {
    const maxCharacters = this.#maxCharacters;
    const encoder = this.#encoder(text.length);
    return Array.from(await encoder.call('encode', { text, addSpecialTokens, maxCharacters }, signal));
  }

  /** Of a TemplateInput as JSON. @throws Failure `invalid_request` with the template's own message. */
  async encodeChat(template: string, signal: AbortSignal): Promise<number[]> {
    const maxCharacters = this.#maxCharacters;
    return Array.from(await this.#encoder(template.length).call('encodeChat', { template, maxCharacters }, signal));
  }

  /** The list of ids, and that of their strings, as JSON. */
  tokenize(
    request: {
      readonly text: string | undefined;
      readonly template: string | undefined;
      readonly hasSpecialTokens: boolean;
      readonly hasStrings: boolean;
    },
    signal: AbortSignal,
  ): Promise<{ count: number; tokens: string; strings: string }> {
    const { text, template, hasSpecialTokens, hasStrings } = request;
    return this.#own().long.call(
      'tokenize',
      { text, template, hasSpecialTokens, hasStrings, maxCharacters: this.#maxCharacters },
      signal,
    );
  }

  detokenize(ids: Uint32Array, signal: AbortSignal): Promise<string> {
    return this.#own().long.call('detokenize', ids, signal);
  }

  /** Of streams that run. Without a tokenizer every text is empty. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]> {
    return this.#workers
      ? this.#workers.streams.call('decode', { lists, skipSpecialTokens })
      : Promise.resolve(lists.map(() => ''));
  }

  async close(): Promise<void> {
    await Promise.all(
      Object.values(this.#workers ?? {}).map((worker: WorkerCalls<TokenizerMethods>) => worker.close()),
    );
  }
}

/** @throws ModelError when the thread ends while it reads the tokenizer. */
async function startTokenizer(
  folder: ModelFolder,
  onDeath: (error: Error) => void,
): Promise<WorkerCalls<TokenizerMethods>> {
  const worker = new Worker(new URL('./tokenizer_worker.js', import.meta.url), { workerData: { folder: folder.path } });
  let isReady = false;
  const calls = new WorkerCalls<TokenizerMethods>(worker, (error) => {
    if (isReady) onDeath(error);
  });
  try {
    await calls.call('longestToken', undefined);
  } catch (cause) {
    throw new ModelError(`the tokenizer of ${folder.path} cannot be used: ${messageOf(cause)}`, { cause });
  }
  isReady = true;
  return calls;
}

/** A character split over tokens decodes to this until its last byte is there. */
const REPLACEMENT = '\uFFFD';
/** Tokens of the prompt that the first output token is decoded with, so that it gets its leading space or not. */
const CONTEXT_TOKENS = 6;
/** Tokens that give no text are kept for what may complete them; no character is split over more than this. */
const MAX_UNFINISHED = 16;

export interface TextStreamOptions {
  readonly stops: readonly string[];
  /** The stop string stays part of the text. */
  readonly isStopIncluded: boolean;
  readonly isSkippingSpecial: boolean;
}

/**
 * Tokens to text, piece by piece: never half a character, never text behind a stop string, nothing that could still become
 * one.
 */
export class TextStream {
  readonly #codec: TextCodec;
  readonly #options: TextStreamOptions;
  /** The last piece's tokens, which give the next one its context, and those that have given no text yet. Bounded (P1). */
  #ids: number[];
  #readAt: number;
  #held = '';
  /** The stop string that ended the text. */
  stop: string | undefined;

  constructor(codec: TextCodec, promptTokens: readonly number[], options: TextStreamOptions) {
    this.#codec = codec;
    this.#options = options;
    this.#ids = promptTokens.slice(-CONTEXT_TOKENS);
    this.#readAt = this.#ids.length;
  }

  /** Text that is certain now. A stop string counts only in the text of tokens that are `isSearched`. */
  async push(token: number, isSearched: boolean): Promise<string> {
    this.#ids.push(token);
    return this.#release(await this.#next(false), false, isSearched);
  }

  /** What was held back, at the end of the output. */
  async flush(): Promise<string> {
    return this.#release(await this.#next(true), true, true);
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
    // Special tokens, for instance: the context stays, they go.
    if (numUnfinished >= MAX_UNFINISHED) this.#ids = this.#ids.slice(0, this.#readAt);
    return '';
  }

  #release(text: string, isLast: boolean, isSearched: boolean): string {
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

/** Length of the longest end of `text` that begins `stop`. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return length;
  }
  return 0;
}
