/**
 * Bodies as the router takes them: bounded each and in all, counted as they arrive and until they are read; a large one is parsed by
 * a thread of its own, so that nobody's stream waits for it.
 */
import type { IncomingMessage } from 'node:http';
import { Failure } from '../../shared/base/failure.ts';
import type { Thread, Threads } from '../../shared/base/threads.ts';
import type { BodyReader, start } from './body_worker.ts';
import { readBody, type BodyKind, type BodyOf } from './openai/body_kinds.ts';
import { ParameterFailure, type BodyLimits } from './openai/parameter_failure.ts';

/** A token id in JSON takes up to 8 bytes, a token's text seldom more; the rest is escapes and keys. */
const BYTES_PER_TOKEN = 32;
/** A batch of short prompts is longer than one prompt of a small model can be. */
const MIN_LIMIT_BYTES = 4 << 20;
/** Of all requests together, those that are still arriving too (P1). */
const MAX_ALL_BYTES = 256 << 20;
/** Of a body that is refused; more, and the answer does not wait for its end. */
const MAX_DROPPED_BYTES = 64 << 20;
/** Parsed at once: about a millisecond. */
const SMALL_BYTES = 16 << 10;

/** A body that has arrived. */
export interface Body {
  /** Empty once it was released. */
  readonly bytes: Buffer;
  /** It is read, or nobody will: its bytes are let go of and count no longer. A second call does nothing. */
  release(): void;
}

const EMPTY = Buffer.alloc(0);
const NOTHING: Body = { bytes: EMPTY, release: () => undefined };

export class Bodies {
  /** One body's. */
  readonly limitBytes: number;
  readonly #limits: () => BodyLimits;
  readonly #worker: Thread<BodyReader>;
  readonly #maxAllBytes: number;
  #allBytes = 0;

  constructor(
    maxBytes: number,
    maxModelLen: number,
    limits: () => BodyLimits,
    threads: Threads,
    onDeath: (error: Error) => void,
  ) {
    this.limitBytes = maxBytes || Math.max(MIN_LIMIT_BYTES, BYTES_PER_TOKEN * maxModelLen);
    this.#limits = limits;
    this.#maxAllBytes = Math.max(MAX_ALL_BYTES, 4 * this.limitBytes);
    const url = new URL('./body_worker.js', import.meta.url);
    this.#worker = threads.spawn<typeof start>({ url }, undefined, { onDeath });
  }

  /** Of all bodies that are arriving or wait to be read. */
  get allBytes(): number {
    return this.#allBytes;
  }

  /** Takes a body in. @throws Failure `overloaded`, Error 413 for one over the limit, Error when the client leaves. */
  take(payload: IncomingMessage, declared: string | undefined): Promise<Body> {
    return new Promise((resolve, reject) => {
      let chunks: Buffer[] = [];
      let whole = EMPTY;
      let size = 0;
      const release = (): void => {
        this.#allBytes -= size;
        size = 0;
        // The request lives as long as its answer; what it brought must not.
        [chunks, whole] = [[], EMPTY];
      };
      let isRefused = false;
      const refuse = (error: Error): void => {
        isRefused = true;
        release();
        payload.off('data', add);
        // What still comes is read and dropped: many clients look for an answer only when they have sent it all.
        let numDropped = 0;
        payload.on('data', (chunk: Buffer) => {
          numDropped += chunk.length;
          if (numDropped > MAX_DROPPED_BYTES) reject(error);
        });
        payload.once('end', () => {
          reject(error);
        });
        if (payload.complete) reject(error);
      };
      const add = (chunk: Buffer): void => {
        if (size + chunk.length > this.limitBytes) {
          refuse(this.#tooLarge());
          return;
        }
        if (this.#allBytes + chunk.length > this.#maxAllBytes) {
          refuse(
            new Failure('overloaded', `request bodies of ${this.#maxAllBytes} bytes are in flight: try again later`),
          );
          return;
        }
        size += chunk.length;
        this.#allBytes += chunk.length;
        chunks.push(chunk);
      };
      if (Number(declared ?? 0) > this.limitBytes) {
        refuse(this.#tooLarge());
        return;
      }
      payload.on('data', add);
      payload.once('end', () => {
        payload.off('data', add);
        if (isRefused) return;
        [whole, chunks] = [Buffer.concat(chunks), []];
        resolve({
          get bytes() {
            return whole;
          },
          release,
        });
      });
      payload.once('close', () => {
        if (payload.complete) return;
        release();
        reject(new Failure('cancelled', 'the client left before its request had arrived'));
      });
    });
  }

  #tooLarge(): Error {
    const message = `the body is over ${this.limitBytes} bytes: shorten it, or start the router with a larger --max-body-bytes`;
    return Object.assign(new Error(message), { statusCode: 413 });
  }

  /** @throws ParameterFailure what is wrong with it. */
  async read<K extends BodyKind>(kind: K, body: Body | undefined, signal: AbortSignal): Promise<BodyOf<K>> {
    const taken = body ?? NOTHING;
    const { bytes } = taken;
    const limits = this.#limits();
    try {
      if (bytes.length <= SMALL_BYTES) return readBody(kind, bytes, limits);
      const { body: parsed, refused } = await this.#worker.call('read', { kind, bytes, limits }, signal);
      if (refused) throw new ParameterFailure(refused.message, refused.param, refused.code);
      return parsed as BodyOf<K>;
    } finally {
      taken.release();
    }
  }

  close(): Promise<void> {
    return this.#worker.close();
  }
}
