/**
 * Caller's side of a duplex call: replies in order, and a way to end the call that does not break its session.
 *
 *   open ──peer ends──► over
 *     ├──leave───► cancel message, half-closed, the rest is dropped ──peer ends──► over
 *     └──lose────► reset
 *
 * A server ends a session that sees many resets (Node: 1,000 at once, 33 a second), and with it every other call there. So running
 * calls are ended by a message; resets are for deadlines, lost peers, and peers that do not end a call within GRACE_MS.
 */
import type { ClientDuplexStream } from '@grpc/grpc-js';
import { Condition } from '../../base/condition.ts';
import type { Clock } from '../../base/clock.ts';
import { Failure } from '../../base/failure.ts';
import { toFailure } from './status.ts';
import { DONE } from '../../base/signal.ts';

/**
 * Milliseconds between a cancel message and a reset. A live peer ends a cancelled call within a step of its engine; a hung peer must
 * not keep the call open.
 */
const GRACE_MS = 10_000;
/** Replies read ahead of the consumer (P1); the transport holds back the rest. */
const MAX_AHEAD = 4;

/** Options of an {@link OpenCall}. */
export interface OpenCallOptions<Q> {
  /** Message that cancels the call; undefined when the end of the requests ends it. */
  readonly cancel: Q | undefined;
  readonly clock: Clock;
  readonly peer: string;
  readonly signal: AbortSignal;
}

/** A duplex call as its caller reads it, with the states drawn at the top of this file. */
export class OpenCall<Q, R> implements AsyncIterableIterator<R> {
  readonly #stream: ClientDuplexStream<Q, R>;
  readonly #options: OpenCallOptions<Q>;
  readonly #replies: R[] = [];
  readonly #over = new AbortController();
  /** Set when no more replies come: the failure, or undefined when the peer has sent all of them. */
  #end: { readonly failure: Failure | undefined } | undefined;
  #isLeft = false;
  readonly #changed = new Condition();

  constructor(stream: ClientDuplexStream<Q, R>, options: OpenCallOptions<Q>) {
    this.#stream = stream;
    this.#options = options;
    stream.on('data', (reply: R) => {
      if (this.#isLeft) return;
      this.#replies.push(reply);
      if (this.#replies.length >= MAX_AHEAD) stream.pause();
      this.#changed.notify();
    });
    const { signal, peer } = options;
    const follow = (): void => {
      const { reason } = signal as { reason: unknown };
      if (reason instanceof Failure && reason.code === 'instance_lost') this.#lose(reason);
      else this.#leave(reason instanceof Failure ? reason : new Failure('cancelled', 'the caller went away'));
    };
    const over = (failure: Failure | undefined): void => {
      signal.removeEventListener('abort', follow);
      this.#end ??= { failure };
      this.#over.abort(DONE);
      this.#changed.notify();
    };
    stream.on('error', (error) => {
      // The error may overtake replies that the stream has buffered; reading them here passes them to the 'data' listener above.
      while (!this.#isLeft && stream.read() !== null);
      over(toFailure(error, peer));
    });
    stream.on('end', () => {
      over(undefined);
    });
    if (signal.aborted) follow();
    else signal.addEventListener('abort', follow, { once: true });
  }

  /** Sends the requests with back-pressure. Their end closes the request stream of a call that has no cancel message. */
  async feed(requests: AsyncIterable<Q>): Promise<void> {
    const stream = this.#stream;
    try {
      for await (const request of requests) {
        if (this.#isLeft || this.#over.signal.aborted) return;
        if (!stream.write(request)) await this.#drained();
      }
      if (this.#options.cancel === undefined && !this.#over.signal.aborted) stream.end();
    } catch (error) {
      this.#leave(toFailure(error, this.#options.peer));
    }
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.#stream.off('drain', done);
        this.#over.signal.removeEventListener('abort', done);
        resolve();
      };
      this.#stream.on('drain', done);
      this.#over.signal.addEventListener('abort', done);
    });
  }

  /** Returns the next reply. @throws Failure that ended the call, after all replies that arrived before it. */
  async next(): Promise<IteratorResult<R, undefined>> {
    for (;;) {
      const value = this.#replies.shift();
      if (value !== undefined) {
        if (this.#replies.length === 0) this.#stream.resume();
        return { done: false, value };
      }
      if (this.#end?.failure) throw this.#end.failure;
      if (this.#end) return { done: true, value: undefined };
      await this.#changed.changed();
    }
  }

  /** Cancels the call, because the reader stops. */
  return(): Promise<IteratorResult<R, undefined>> {
    this.#leave(undefined);
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Resets the call because the peer is gone; no cancel message is sent. */
  #lose(why: Failure): void {
    this.#end ??= { failure: why };
    this.#isLeft = true;
    this.#changed.notify();
    if (!this.#over.signal.aborted) this.#stream.cancel();
  }

  /** Cancels the call; the reader gets `why`. A second call, or one after the end, does nothing. */
  #leave(why: Failure | undefined): void {
    if (this.#isLeft) return;
    this.#isLeft = true;
    this.#end ??= { failure: why };
    this.#replies.length = 0;
    this.#changed.notify();
    if (this.#over.signal.aborted) return;
    const { cancel, clock } = this.#options;
    if (cancel !== undefined) this.#stream.write(cancel);
    this.#stream.end();
    this.#stream.resume();
    void clock.sleep(GRACE_MS, this.#over.signal).then(() => {
      if (!this.#over.signal.aborted) this.#stream.cancel();
    });
  }
}
