/**
 * Bodies as the router takes them: bounded each and in all, and a large one is parsed by a thread of its own, so that nobody's
 * stream waits for it.
 */
import { Worker } from 'node:worker_threads';
import { Failure } from '../../shared/base/failure.ts';
import { WorkerCalls } from '../../shared/base/worker_calls.ts';
import type { BodyKind, BodyMethods, BodyOf } from './body_worker.ts';
import { readBody } from './openai/body_kinds.ts';
import { ParameterFailure, type BodyLimits } from './openai/parameter_failure.ts';

/** A token id in JSON takes up to 8 bytes, a token's text seldom more; the rest is escapes and keys. */
const BYTES_PER_TOKEN = 32;
/** A batch of short prompts is longer than one prompt of a small model can be. */
const MIN_LIMIT_BYTES = 4 << 20;
/** Of all requests together, those that are still arriving too (P1). */
const MAX_ALL_BYTES = 256 << 20;
/** Parsed at once: about a millisecond. */
const SMALL_BYTES = 16 << 10;

export class Bodies {
  /** One body's. */
  readonly limitBytes: number;
  readonly #limits: () => BodyLimits;
  readonly #worker: WorkerCalls<BodyMethods>;
  readonly #maxAllBytes: number;
  #allBytes = 0;

  constructor(maxBytes: number, maxModelLen: number, limits: () => BodyLimits, onDeath: (error: Error) => void) {
    this.limitBytes = maxBytes || Math.max(MIN_LIMIT_BYTES, BYTES_PER_TOKEN * maxModelLen);
    this.#limits = limits;
    this.#maxAllBytes = Math.max(MAX_ALL_BYTES, 4 * this.limitBytes);
    this.#worker = new WorkerCalls(new Worker(new URL('./body_worker.js', import.meta.url)), onDeath);
  }

  /** Room for a body of so many bytes; unknown is the most there can be. @returns gives it back. @throws Failure `overloaded`. */
  reserve(bytes: number | undefined): () => void {
    const size = Math.min(bytes ?? this.limitBytes, this.limitBytes);
    if (this.#allBytes + size > this.#maxAllBytes) {
      throw new Failure('overloaded', `request bodies of ${this.#maxAllBytes} bytes are in flight: try again later`);
    }
    this.#allBytes += size;
    let isHeld = true;
    return () => {
      if (isHeld) this.#allBytes -= size;
      isHeld = false;
    };
  }

  /** @throws ParameterFailure what is wrong with it. */
  async read<K extends BodyKind>(kind: K, bytes: Uint8Array, signal: AbortSignal): Promise<BodyOf<K>> {
    const limits = this.#limits();
    if (bytes.length <= SMALL_BYTES) return readBody(kind, bytes, limits);
    const { body, refused } = await this.#worker.call('read', { kind, bytes, limits }, signal);
    if (refused) throw new ParameterFailure(refused.message, refused.param, refused.code);
    return body as BodyOf<K>;
  }

  close(): Promise<void> {
    return this.#worker.close();
  }
}
