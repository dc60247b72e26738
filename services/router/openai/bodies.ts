/**
 * Bodies as the router takes them: bounded each and in all, counted as they arrive and until they are read; a large one is parsed by
 * a thread of its own, so that nobody's stream waits for it.
 */
import { Failure } from '../../../shared/base/failure.ts';
import type { Thread, Threads } from '../../../shared/base/threads.ts';
import type { BodyReader, start } from './body_worker.ts';
import { readBody, type BodyKind, type BodyOf } from './body_kinds.ts';
import type { PromptBodyKind, ReadPromptBody } from '../text/prompt_body.ts';
import type { TextCodec } from '../text/text.ts';
import { ParameterFailure, type BodyLimits } from './parameter_failure.ts';

/** A token id in JSON takes up to 8 bytes, a token's text seldom more; the rest is escapes and keys. */
const BYTES_PER_TOKEN = 32;
/** A batch of short prompts is longer than one prompt of a small model can be. */
const MIN_LIMIT_BYTES = 4 << 20;
/** Bytes of all bodies in memory together, arriving ones included (P1). The limit is at least four times the limit of one body. */
const MAX_ALL_BYTES = 256 << 20;
/** Parsed at once: about a millisecond. */
const SMALL_BYTES = 16 << 10;

/** A body that has arrived. */
export interface Body {
  /** Empty once it was released. */
  readonly bytes: Buffer;
  /** Frees the bytes, once they are read or will not be read, and no longer counts them. A second call does nothing. */
  release(): void;
}

/** One that is arriving. */
export interface BodySlot {
  /** @throws Failure `overloaded`, Error 413 for more than the limit; what was there is let go of then. */
  add(chunk: Buffer): void;
  /** Completes the body when its last byte has arrived, and returns the body. */
  end(): Body;
  /** Frees the bytes of a body that will not arrive completely. */
  drop(): void;
}

const EMPTY = Buffer.alloc(0);
/** Body of a request that has none. */
export const noBody: Body = { bytes: EMPTY, release: () => undefined };

/** Request bodies: limits their bytes, each and together, and parses them. Bodies over SMALL_BYTES are parsed on a thread of their own. */
export class Bodies {
  readonly #maxBytes: number;
  readonly #longest: () => number;
  readonly #limits: () => BodyLimits;
  readonly #worker: Thread<BodyReader>;
  #allBytes = 0;

  constructor(
    maxBytes: number,
    longest: () => number,
    limits: () => BodyLimits,
    threads: Threads,
    onDeath: (error: Error) => void,
  ) {
    this.#maxBytes = maxBytes;
    this.#longest = longest;
    this.#limits = limits;
    const url = new URL('./body_worker.js', import.meta.url);
    this.#worker = threads.spawn<typeof start>({ url }, undefined, { onDeath });
  }

  /** One body's: by the longest context that is served. */
  get limitBytes(): number {
    return this.#maxBytes || Math.max(MIN_LIMIT_BYTES, BYTES_PER_TOKEN * this.#longest());
  }

  get #maxAllBytes(): number {
    return Math.max(MAX_ALL_BYTES, 4 * this.limitBytes);
  }

  /** Returns the bytes of all bodies that are arriving or waiting to be read. */
  get allBytes(): number {
    return this.#allBytes;
  }

  /** `declared`: its length, where that is known. @throws Error 413 for more than the limit. */
  begin(declared: number): BodySlot {
    const [limitBytes, maxAllBytes] = [this.limitBytes, this.#maxAllBytes];
    if (declared > limitBytes) throw this.#tooLarge();
    let chunks: Buffer[] = [];
    let whole = EMPTY;
    let size = 0;
    const release = (): void => {
      this.#allBytes -= size;
      size = 0;
      // The request lives as long as its answer; what it brought must not.
      [chunks, whole] = [[], EMPTY];
    };
    const refuse = (error: Error): never => {
      release();
      throw error;
    };
    return {
      add: (chunk) => {
        if (size + chunk.length > limitBytes) refuse(this.#tooLarge());
        if (this.#allBytes + chunk.length > maxAllBytes) {
          refuse(new Failure('overloaded', `request bodies of ${maxAllBytes} bytes are in flight: try again later`));
        }
        size += chunk.length;
        this.#allBytes += chunk.length;
        chunks.push(chunk);
      },
      end: () => {
        [whole, chunks] = [Buffer.concat(chunks), []];
        return {
          get bytes() {
            return whole;
          },
          release,
        };
      },
      drop: release,
    };
  }

  #tooLarge(): Error {
    const message = `the body is over ${this.limitBytes} bytes: shorten it, or start the router with a larger --max-body-bytes`;
    return Object.assign(new Error(message), { statusCode: 413 });
  }

  /** @throws ParameterFailure what is wrong with it. */
  async read<K extends BodyKind>(kind: K, body: Body, signal: AbortSignal): Promise<BodyOf<K>> {
    const { bytes } = body;
    const limits = this.#limits();
    try {
      if (bytes.length <= SMALL_BYTES) return readBody(kind, bytes, limits);
      const { body: parsed, refused } = await this.#worker.call('read', { kind, bytes, limits }, signal);
      if (refused) throw new ParameterFailure(refused.message, refused.param, refused.code);
      return parsed as BodyOf<K>;
    } finally {
      body.release();
    }
  }

  /**
   * With the ids of its prompts, where it is for the model that `codec` is of and that has a tokenizer: read and encoded by one of its
   * threads. @throws ParameterFailure what is wrong with it, Failure what is wrong with its prompts.
   */
  async readPrompts<K extends PromptBodyKind>(
    kind: K,
    body: Body,
    { servedName: model, codec }: { readonly servedName: string; readonly codec: TextCodec },
    signal: AbortSignal,
  ): Promise<ReadPromptBody<K>> {
    // Token ids wait for no text.
    if (!codec.hasTokenizer || (kind === 'completion' && holdsIds(body.bytes)))
      return { body: await this.read(kind, body, signal), prompts: undefined };
    try {
      const read = await codec.readPrompts({ kind, bytes: body.bytes, limits: this.#limits(), model }, signal);
      if ('refused' in read) throw new ParameterFailure(read.refused.message, read.refused.param, read.refused.code);
      return read;
    } finally {
      body.release();
    }
  }

  close(): Promise<void> {
    return this.#worker.close();
  }
}

const PROMPT = Buffer.from('"prompt"');
const LOOKED_AT = 64;

/** Whether a prompt seems to be token ids: it decides who reads the body, and nothing else. */
function holdsIds(bytes: Buffer): boolean {
  const at = bytes.indexOf(PROMPT) + PROMPT.length;
  return at >= PROMPT.length && /^\s*:\s*\[[\s[]*\d/.test(bytes.toString('latin1', at, at + LOOKED_AT));
}
