/**
 * Text in, token ids out, and back. Asynchronous, because a thread of its own does it; a model folder without a tokenizer
 * serves token ids only.
 */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { WorkerCalls } from '../../shared/base/worker_calls.ts';
import { ModelError, type ModelFolder } from '../../shared/model/model_folder.ts';
import type { ChatMessage, TokenizerMethods } from './tokenizer_worker.ts';

export class TextCodec {
  readonly #calls: WorkerCalls<TokenizerMethods> | undefined;

  private constructor(calls: WorkerCalls<TokenizerMethods> | undefined) {
    this.#calls = calls;
  }

  /** @throws ModelError when tokenizer.json or the template cannot be used. */
  static async open(folder: ModelFolder): Promise<TextCodec> {
    if (!folder.hasTokenizer) return new TextCodec(undefined);
    const worker = new Worker(new URL('./tokenizer_worker.js', import.meta.url), {
      workerData: { folder: folder.path },
    });
    const died = once(worker, 'error').then(([error]: unknown[]) => {
      throw new ModelError(`the tokenizer of ${folder.path} cannot be used: ${messageOf(error)}`);
    });
    died.catch(() => undefined);
    const calls = new WorkerCalls<TokenizerMethods>(worker);
    await Promise.race([calls.call('decode', { lists: [], skipSpecialTokens: true }).catch(() => died), died]);
    return new TextCodec(calls);
  }

  get hasTokenizer(): boolean {
    return this.#calls !== undefined;
  }

  #worker(): WorkerCalls<TokenizerMethods> {
    if (!this.#calls) {
      throw new Failure(
        'invalid_request',
        'this model has no tokenizer: send the prompt as token ids to /v1/completions',
      );
    }
    return this.#calls;
  }

  encode(text: string, addSpecialTokens: boolean): Promise<number[]> {
    return this.#worker().call('encode', { text, addSpecialTokens });
  }

  /** @throws Failure `invalid_request` with the template's own message. */
  async encodeChat(messages: readonly ChatMessage[], addGenerationPrompt: boolean): Promise<number[]> {
    const worker = this.#worker();
    try {
      return await worker.call('encodeChat', { messages, addGenerationPrompt });
    } catch (cause) {
      throw new Failure('invalid_request', `messages: the chat template refuses them: ${messageOf(cause)}`, { cause });
    }
  }

  /** Without a tokenizer every text is empty. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]> {
    return this.#calls
      ? this.#calls.call('decode', { lists, skipSpecialTokens })
      : Promise.resolve(lists.map(() => ''));
  }

  async close(): Promise<void> {
    await this.#calls?.close();
  }
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
