/**
 * Text in, token ids out, and back. Asynchronous, because a thread of its own does it; a model folder without a tokenizer
 * serves token ids only.
 */
import { Worker } from 'node:worker_threads';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { WorkerCalls } from '../../shared/base/worker_calls.ts';
import { ModelError, type ModelFolder } from '../../shared/model/model_folder.ts';
import type { ChatMessage, TokenizerMethods } from './tokenizer_worker.ts';

/** No vocabulary has longer tokens, runs of white space included: longer text cannot fit the context, and is not tokenised first. */
const MAX_CHARACTERS_PER_TOKEN = 256;

interface Workers {
  readonly encoder: WorkerCalls<TokenizerMethods>;
  readonly decoder: WorkerCalls<TokenizerMethods>;
}

export class TextCodec {
  /** Two threads: a long prompt must not hold up the text of streams that run. */
  readonly #workers: Workers | undefined;
  readonly #maxCharacters: number;

  private constructor(workers: Workers | undefined, maxTokens: number) {
    this.#workers = workers;
    this.#maxCharacters = maxTokens * MAX_CHARACTERS_PER_TOKEN;
  }

  /** @throws ModelError when tokenizer.json or the template cannot be used. */
  static async open(folder: ModelFolder, onDeath: (error: Error) => void): Promise<TextCodec> {
    if (!folder.hasTokenizer) return new TextCodec(undefined, folder.config.maxPositions);
    const [encoder, decoder] = await Promise.all([startTokenizer(folder, onDeath), startTokenizer(folder, onDeath)]);
    return new TextCodec({ encoder, decoder }, folder.config.maxPositions);
  }

  get hasTokenizer(): boolean {
    return this.#workers !== undefined;
  }

  #encoder(characters: number): WorkerCalls<TokenizerMethods> {
    if (!this.#workers) {
      throw new Failure(
        'invalid_request',
        'this model has no tokenizer: send the prompt as token ids to /v1/completions',
      );
    }
    if (characters > this.#maxCharacters) {
      throw new Failure('context_too_long', `${characters} characters cannot fit the context: shorten the prompt`);
    }
    return this.#workers.encoder;
  }

  /** @throws Failure `context_too_long` for text that cannot fit whatever its tokens are. */
  encode(text: string, addSpecialTokens: boolean): Promise<number[]> {
    return this.#encoder(text.length).call('encode', { text, addSpecialTokens });
  }

  /** @throws Failure `invalid_request` with the template's own message. */
  async encodeChat(messages: readonly ChatMessage[], addGenerationPrompt: boolean): Promise<number[]> {
    const encoder = this.#encoder(messages.reduce((sum, { content }) => sum + content.length, 0));
    try {
      return await encoder.call('encodeChat', { messages, addGenerationPrompt });
    } catch (cause) {
      throw new Failure('invalid_request', `messages: the chat template refuses them: ${messageOf(cause)}`, { cause });
    }
  }

  /** Without a tokenizer every text is empty. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]> {
    return this.#workers
      ? this.#workers.decoder.call('decode', { lists, skipSpecialTokens })
      : Promise.resolve(lists.map(() => ''));
  }

  async close(): Promise<void> {
    await Promise.all([this.#workers?.encoder.close(), this.#workers?.decoder.close()]);
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
    await calls.call('decode', { lists: [], skipSpecialTokens: true });
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

/**
 * Tokens to text, piece by piece: never half a character, never text behind a stop string, nothing that could still become
 * one.
 */
export class TextStream {
  readonly #codec: TextCodec;
  readonly #stops: readonly string[];
  readonly #ids: number[];
  #prefixAt = 0;
  #readAt: number;
  #held = '';
  isStopped = false;

  constructor(codec: TextCodec, promptTokens: readonly number[], stops: readonly string[]) {
    this.#codec = codec;
    this.#stops = stops;
    this.#ids = promptTokens.slice(-CONTEXT_TOKENS);
    this.#readAt = this.#ids.length;
  }

  /** Text that is certain now. */
  async push(token: number): Promise<string> {
    this.#ids.push(token);
    return this.#release(await this.#next(false), false);
  }

  /** What was held back, at the end of the output. */
  async flush(): Promise<string> {
    return this.#release(await this.#next(true), true);
  }

  async #next(isLast: boolean): Promise<string> {
    const [before = '', after = ''] = await this.#codec.decode(
      [this.#ids.slice(this.#prefixAt, this.#readAt), this.#ids.slice(this.#prefixAt)],
      true,
    );
    if (after.length <= before.length || (after.endsWith(REPLACEMENT) && !isLast)) return '';
    this.#prefixAt = this.#readAt;
    this.#readAt = this.#ids.length;
    return after.slice(before.length);
  }

  #release(text: string, isLast: boolean): string {
    if (this.isStopped) return '';
    const pending = this.#held + text;
    this.#held = '';
    const found = this.#stops.map((stop) => pending.indexOf(stop)).filter((at) => at >= 0);
    if (found.length > 0) {
      this.isStopped = true;
      return pending.slice(0, Math.min(...found));
    }
    if (isLast) return pending;
    const numHeld = Math.max(0, ...this.#stops.map((stop) => overlap(pending, stop)));
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
