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
/** Token names in one call: some milliseconds. */
const NAMES_AT_ONCE = 1_024;

/**
 * Threads: the text of streams that run waits for nothing else; short prompts wait for no long one; and what clients ask of
 * /tokenize and /detokenize, however much, waits for itself, on a thread that begins with the first of it.
 */
interface Workers {
  readonly streams: WorkerCalls<TokenizerMethods>;
  readonly prompts: WorkerCalls<TokenizerMethods>;
  readonly long: WorkerCalls<TokenizerMethods>;
  tools: Promise<WorkerCalls<TokenizerMethods>> | undefined;
  readonly startTools: () => Promise<WorkerCalls<TokenizerMethods>>;
}

export class TextCodec {
  readonly #workers: Workers | undefined;
  /** Longer text cannot fit the context, and is not tokenised to find out. */
  readonly #maxCharacters: number;
  /** Bounded by the vocabulary (P1). */
  readonly #names = new Map<number, string>();

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
    return new TextCodec({ streams, prompts, long, tools: undefined, startTools: start }, maxTokens * longest);
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
  async tokenize(
    request: {
      readonly text: string | undefined;
      readonly template: string | undefined;
      readonly hasSpecialTokens: boolean;
      readonly hasStrings: boolean;
    },
    signal: AbortSignal,
  ): Promise<{ count: number; tokens: string; strings: string }> {
    const { text, template, hasSpecialTokens, hasStrings } = request;
    return (await this.#tools()).call(
      'tokenize',
      { text, template, hasSpecialTokens, hasStrings, maxCharacters: this.#maxCharacters },
      signal,
    );
  }

  async detokenize(ids: Uint32Array, signal: AbortSignal): Promise<string> {
    return (await this.#tools()).call('detokenize', ids, signal);
  }

  #tools(): Promise<WorkerCalls<TokenizerMethods>> {
    const workers = this.#own();
    return (workers.tools ??= workers.startTools());
  }

  /** Of streams that run. Without a tokenizer every text is empty. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]> {
    return this.#workers
      ? this.#workers.streams.call('decode', { lists, skipSpecialTokens })
      : Promise.resolve(lists.map(() => ''));
  }

  /** Texts of single tokens, special ones too; each is asked of the thread once. */
  async names(ids: readonly number[]): Promise<(id: number) => string> {
    const missing = [...new Set(ids)].filter((id) => !this.#names.has(id));
    // In slices: the text of every stream comes from the same thread.
    for (let at = 0; at < missing.length; at += NAMES_AT_ONCE) {
      const slice = missing.slice(at, at + NAMES_AT_ONCE);
      const texts = await this.decode(
        slice.map((id) => [id]),
        false,
      );
      slice.forEach((id, i) => this.#names.set(id, texts[i] ?? ''));
    }
    return (id) => this.#names.get(id) ?? '';
  }

  async close(): Promise<void> {
    if (!this.#workers) return;
    const { streams, prompts, long, tools } = this.#workers;
    await Promise.all([streams, prompts, long, ...(tools ? [await tools] : [])].map((worker) => worker.close()));
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
  readonly #codec: Pick<TextCodec, 'decode'>;
  readonly #options: TextStreamOptions;
  /** The last piece's tokens, which give the next one its context, and those that have given no text yet. Bounded (P1). */
  #ids: number[];
  #readAt: number;
  #held = '';
  /** The stop string that ended the text. */
  stop: string | undefined;

  constructor(codec: Pick<TextCodec, 'decode'>, promptTokens: readonly number[], options: TextStreamOptions) {
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
  async flush(isSearched: boolean): Promise<string> {
    return this.#release(await this.#next(true), true, isSearched);
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
    if (after === before || numUnfinished >= MAX_UNFINISHED) this.#ids = this.#ids.slice(0, this.#readAt);
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
