/**
 * A call as its caller holds it: messages out, replies in, and an end that the transport survives.
 *
 *   open ──peer ends──► over
 *     ├──finish──► half-closed, the rest is read and dropped ──peer ends──► over
 *     ├──leave───► cancel message, half-closed, the rest is dropped ──peer ends──► over
 *     └──lose────► reset
 *
 * A server ends a session that sees many resets (Node: 1,000 at once, 33 a second), and with it every other call there. So
 * finished calls are read to their end, running ones are ended by a message, and resets are for deadlines, lost peers, and
 * peers that do not end within GRACE_MS.
 */
import type { ClientDuplexStream, ServerDuplexStream } from '@grpc/grpc-js';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { Started } from './messages.ts';
import { toFailure, toStatus } from './rpc.ts';

/** A peer that lives ends a cancelled call within a step of its engine; one that hangs must not keep the call open. */
const GRACE_MS = 10_000;
/** Replies read ahead of the consumer (P1); the transport holds back the rest. */
const MAX_AHEAD = 4;
/** A caller that opens a call says what it wants at once. */
const START_TIMEOUT_MS = 10_000;

export class OpenCall<Q, R> {
  readonly #stream: ClientDuplexStream<Q, R>;
  readonly #cancel: Q;
  readonly #clock: Clock;
  readonly #replies: R[] = [];
  readonly #over = new AbortController();
  /** Why reading ends; no failure: the peer has said all. */
  #end: { readonly failure: Failure | undefined } | undefined;
  #isLeft = false;
  #wake: () => void = () => undefined;

  constructor(stream: ClientDuplexStream<Q, R>, cancel: Q, clock: Clock, peer: string) {
    this.#stream = stream;
    this.#cancel = cancel;
    this.#clock = clock;
    stream.on('data', (reply: R) => {
      if (this.#isLeft) return;
      this.#replies.push(reply);
      if (this.#replies.length >= MAX_AHEAD) stream.pause();
      this.#wake();
    });
    const over = (failure: Failure | undefined): void => {
      this.#end ??= { failure };
      this.#over.abort();
      this.#wake();
    };
    stream.on('error', (error) => {
      // The status overtakes what the stream holds already; a read tells the listener above.
      while (!this.#isLeft && stream.read() !== null);
      over(toFailure(error, peer));
    });
    stream.on('end', () => {
      over(undefined);
    });
  }

  /** Dropped when the call is over: what ended it says why. */
  send(message: Q): void {
    if (!this.#isLeft && !this.#over.signal.aborted) this.#stream.write(message);
  }

  /** Replies in order. @throws Failure why the call ended, after what had arrived by then. */
  async *replies(): AsyncGenerator<R> {
    for (;;) {
      const reply = this.#replies.shift();
      if (reply !== undefined) {
        if (this.#replies.length === 0) this.#stream.resume();
        yield reply;
      } else if (this.#end?.failure) throw this.#end.failure;
      else if (this.#end) return;
      else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }

  /** All that matters has been read: the server may end the call in its own time. */
  finish(): void {
    this.#letGo(undefined, undefined);
  }

  /** Ends what runs. Whoever reads gets `why`. A second call, or one after the end, does nothing. */
  leave(why: Failure = new Failure('cancelled', 'the caller went away')): void {
    this.#letGo(why, this.#cancel);
  }

  /** The peer is gone: nothing can be said to it. */
  lose(why: Failure): void {
    this.#end ??= { failure: why };
    this.#isLeft = true;
    this.#wake();
    if (!this.#over.signal.aborted) this.#stream.cancel();
  }

  #letGo(why: Failure | undefined, last: Q | undefined): void {
    if (this.#isLeft) return;
    this.#isLeft = true;
    this.#end ??= { failure: why };
    this.#replies.length = 0;
    this.#wake();
    if (this.#over.signal.aborted) return;
    if (last !== undefined) this.#stream.write(last);
    this.#stream.end();
    this.#stream.resume();
    void this.#clock.sleep(GRACE_MS, this.#over.signal).then(() => {
      if (!this.#over.signal.aborted) this.#stream.cancel();
    });
  }
}

/** Aborts when the peer goes away. */
export function abortOnCancel(call: {
  on(event: 'cancelled', listener: () => void): unknown;
  cancelled: boolean;
}): AbortSignal {
  return abortableOnCancel(call).signal;
}

export function abortableOnCancel(call: Parameters<typeof abortOnCancel>[0]): AbortController {
  const controller = new AbortController();
  call.on('cancelled', () => {
    controller.abort();
  });
  if (call.cancelled) controller.abort();
  return controller;
}

/**
 * The server's side of a call with one request: `serve` runs when it has come, under a signal that a cancel message or the
 * caller's loss aborts; its end is the call's, its failure the call's status.
 */
export function serveStarted<Start, R>(
  call: ServerDuplexStream<Started<Start>, R>,
  clock: Clock,
  serve: (start: Start, signal: AbortSignal) => Promise<void>,
): void {
  const left = abortableOnCancel(call);
  const hasStarted = new AbortController();
  const refuse = (why: string): void => {
    if (!hasStarted.signal.aborted && !call.cancelled) endWith(call, new Failure('invalid_request', why));
    hasStarted.abort();
  };
  call.on('data', (message: Started<Start>) => {
    if ('cancel' in message) left.abort();
    else if (!hasStarted.signal.aborted) {
      hasStarted.abort();
      serve(message.start, left.signal).then(
        () => call.end(),
        (error: unknown) => {
          endWith(call, error);
        },
      );
    }
  });
  call.on('end', () => {
    refuse('the call ended before it said what it wants');
  });
  void clock.sleep(START_TIMEOUT_MS, AbortSignal.any([hasStarted.signal, left.signal])).then(() => {
    if (!left.signal.aborted) refuse(`a call says what it wants within ${START_TIMEOUT_MS} ms`);
  });
}

/** The call ends with the failure's status; one that was lost already has nobody to tell. */
export function endWith(
  call: { cancelled: boolean; emit(event: 'error', status: object): boolean },
  error: unknown,
): void {
  if (!call.cancelled) call.emit('error', toStatus(error));
}
