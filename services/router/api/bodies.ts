/**
 * Request bodies: their bytes are limited each and together, and counted from their arrival until they are parsed. A large body is
 * parsed on a thread of its own, so that no stream waits for it.
 */
import type { CallFor } from '../../../shared/base/call_queue.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Thread, ThreadModule, Threads } from '../../../shared/base/threads.ts';
import type { BodyKind, ParsedBody, PromptBodyKind } from './body_kind.ts';
import type { BodyReader } from './body_reader.ts';
import type { Caller } from '../access/caller.ts';
import type { TextCodec } from '../../../shared/text/text.ts';
import type { PromptTools, ReadPromptBody } from './prompt_tools.ts';
import { ParameterFailure, type BodyLimits, type Refusal } from './parameter_failure.ts';

/**
 * Body bytes per token of the longest context: a token id in JSON takes up to 8 bytes, a token's text seldom more; the rest is escapes
 * and keys.
 */
const BYTES_PER_TOKEN = 32;
/** Least size limit of a body: a batch of short prompts may be longer than one prompt of a small model can be. */
const MIN_LIMIT_BYTES = 4 << 20;
/** Bytes of all bodies in memory together, arriving ones included (P1). The limit is at least four times the limit of one body. */
const MAX_ALL_BYTES = 256 << 20;
/** Largest body that is parsed on the router's main thread: about a millisecond. */
const SMALL_BYTES = 16 << 10;

/** A body that has arrived. */
export interface Body {
  /** Bytes of the body; empty once released. */
  readonly bytes: Buffer;
  /** Frees the bytes, once they are read or will not be read, and no longer counts them. A second call does nothing. */
  release(): void;
}

/** A body that is still arriving. */
export interface BodySlot {
  /**
   * Adds received bytes. @throws Failure `overloaded` when all bodies together are too large, Error with status 413 when this one is;
   * its bytes are released then.
   */
  add(chunk: Buffer): void;
  /** Completes the body when its last byte has arrived, and returns the body. */
  end(): Body;
  /** Frees the bytes of a body that will not arrive completely. */
  drop(): void;
}

/** The request whose body is read: who sends it, until when it is wanted, and whose share of a thread's time it takes. */
interface Reading extends CallFor {
  readonly caller: Caller;
}

const EMPTY = Buffer.alloc(0);
/** Body of a request that has none. */
export const noBody: Body = { bytes: EMPTY, release: () => undefined };

/** Request bodies: limits their bytes, each and together, and parses them. Bodies over SMALL_BYTES are parsed on a thread of their own, which runs `module`. */
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
    module: ThreadModule,
    onDeath: (error: Error) => void,
  ) {
    this.#maxBytes = maxBytes;
    this.#longest = longest;
    this.#limits = limits;
    this.#worker = threads.spawn<() => BodyReader>(module, undefined, { onDeath });
  }

  /** Size limit of one body in bytes: the configured one, else derived from the longest context that is served. */
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

  /**
   * Begins a body. `declared` is its announced length in bytes, 0 when unknown. @throws Error with status 413 when `declared` is over
   * the limit.
   */
  begin(declared: number): BodySlot {
    const [limitBytes, maxAllBytes] = [this.limitBytes, this.#maxAllBytes];
    if (declared > limitBytes) throw this.#tooLarge();
    let chunks: Buffer[] = [];
    let whole = EMPTY;
    let size = 0;
    const release = (): void => {
      this.#allBytes -= size;
      size = 0;
      // Drop the references: the request object lives as long as its answer, and its body must not.
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

  /** Parses and validates a body of this caller, and releases its bytes. @throws ParameterFailure naming what is wrong with the body. */
  async read<B extends ParsedBody>(kind: BodyKind<B>, body: Body, { caller, signal, share }: Reading): Promise<B> {
    const { bytes } = body;
    const limits = this.#limitsOf(caller);
    try {
      if (bytes.length <= SMALL_BYTES) return kind.read(bytes, limits);
      const read = await this.#worker.call('read', { kind: kind.name, bytes, limits }, signal, share);
      return accepted(read).body as B;
    } finally {
      body.release();
    }
  }

  /**
   * Parses a body and encodes its prompts on a thread of `codec`. `prompts` is undefined when the body names another model, has token
   * ids, or the model has no tokenizer. A prompt that cannot be encoded is returned as `failure`. @throws ParameterFailure naming what
   * is wrong with the body.
   */
  async readPrompts<B extends ParsedBody>(
    kind: PromptBodyKind<B>,
    body: Body,
    { servedName: model, codec }: { readonly servedName: string; readonly codec: TextCodec },
    reading: Reading,
  ): Promise<ReadPromptBody<B>> {
    const { caller, signal, share } = reading;
    // Token ids need no tokenizer, so they do not wait for its threads.
    if (!codec.hasTokenizer || holdsIds(body.bytes, kind))
      return { body: await this.read(kind, body, reading), prompts: undefined };
    try {
      const { bytes } = body;
      const limits = this.#limitsOf(caller);
      const { maxCharacters } = codec;
      const thread = await codec.encoderOf<PromptTools>(bytes.length);
      const job = { kind: kind.name, bytes, limits, model, maxCharacters };
      const read = await thread.call('readPrompts', job, signal, share);
      return accepted(read) as ReadPromptBody<B>;
    } finally {
      body.release();
    }
  }

  #limitsOf({ cacheTenant: tenant, limits, models }: Caller): BodyLimits {
    const { allowsPriority, maxSamples } = limits;
    return { ...this.#limits(), tenant, models, allowsPriority, maxSamples };
  }

  close(): Promise<void> {
    return this.#worker.close();
  }
}

/** Returns what a thread has read. @throws ParameterFailure for a body that it refuses */
function accepted<T extends object>(read: T | { readonly refused: Refusal }): T {
  if (!('refused' in read)) return read;
  const { message, param, code } = read.refused;
  throw new ParameterFailure(message, param, code);
}

const LOOKED_AT = 64;

/** Whether the prompt seems to be token ids. A wrong guess only changes which thread parses the body. */
function holdsIds(bytes: Buffer, { idsField: field }: Pick<PromptBodyKind, 'idsField'>): boolean {
  if (field === undefined) return false;
  const { length } = field;
  const at = bytes.indexOf(`"${field}"`) + length + 2;
  return at >= length + 2 && /^\s*:\s*\[[\s[]*\d/.test(bytes.toString('latin1', at, at + LOOKED_AT));
}
