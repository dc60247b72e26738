/**
 * One HTTP request from its arrival to the end of its answer: who can end it, what was opened for it, and the one place where it
 * all is let go of (R2).
 *
 * Its signal aborts when the client is gone, when the deadline has passed, or when the router ends; the last two with a Failure
 * as reason, for a client that still listens.
 *
 * A client that has only closed its side (FIN after the request) gets its answer. One that is gone looks the same until something
 * is written to it, so it is told that its request is being processed: HTTP/1.1 102, or a comment in an event stream.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Failure } from '../../../shared/base/failure.ts';
import { linkSignals, type Link } from '../../../shared/base/signal.ts';
import type { Body } from '../bodies.ts';
import type { RequestRecord } from '../request_log.ts';
import { openRecord, type ApiContext, type RequestNames } from './prompt_run.ts';

/** Two writes find out that nobody is there: the first is answered by a reset, the second meets it. */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 5_000;
/** The relay keeps the deadline and says so in the stream; this ends what waits for a reader behind it. */
const DEADLINE_GRACE_MS = 1_000;

export class RequestScope {
  readonly link: Link;
  readonly #context: ApiContext;
  readonly #reply: FastifyReply;
  readonly #over = new AbortController();
  readonly #gone = new AbortController();
  readonly #records: RequestRecord[] = [];
  readonly #generators: AsyncGenerator[] = [];
  #names: RequestNames;
  /** What arrived, until it is read. */
  readonly body: Body | undefined;

  constructor(context: ApiContext, request: FastifyRequest, reply: FastifyReply) {
    this.#context = context;
    this.#reply = reply;
    this.link = linkSignals(this.#gone.signal, context.ending);
    this.#names = namesOf(request);
    this.body = request.body as Body | undefined;
    context.requests.answering(1);
    let isAnswered = false;
    const { socket } = request.raw;
    // The connection's end, not the answer's: one that waits behind another on its connection never hears of it.
    const closed = (): void => {
      socket.removeListener('close', closed);
      reply.raw.removeListener('close', closed);
      if (!reply.raw.writableFinished) this.#gone.abort();
      if (!isAnswered) context.requests.answering(-1);
      isAnswered = true;
    };
    socket.once('close', closed);
    reply.raw.once('close', closed);
    if (socket.destroyed) closed();
    const halfClosed = (): void => void this.#probe(request.raw.httpVersion !== '1.0');
    socket.once('end', halfClosed);
    this.#over.signal.addEventListener('abort', () => socket.removeListener('end', halfClosed));
    void context.clock.sleep(context.requestTimeoutMs + DEADLINE_GRACE_MS, this.#over.signal).then(() => {
      this.link.abort(new Failure('deadline_exceeded', `the request took over ${context.requestTimeoutMs} ms`));
    });
  }

  get signal(): AbortSignal {
    return this.link.signal;
  }

  /** Nobody is there to answer. */
  get isGone(): boolean {
    return this.#gone.signal.aborted;
  }

  /** A record of this request, closed with it. @throws Failure `overloaded`. */
  open(endpoint: string): RequestRecord {
    const record = openRecord(this.#context, endpoint, this.#names);
    this.#records.push(record);
    return record;
  }

  /** What the body calls the request, where no header has said it: for the records that are open and those to come. */
  named(clientId: string | undefined): void {
    this.#names = { ...this.#names, clientId: this.#names.clientId ?? clientId };
    for (const record of this.#records) record.names = this.#names;
  }

  /** A generator that is ended with the request. */
  own<T extends AsyncGenerator>(generator: T): T {
    this.#generators.push(generator);
    return generator;
  }

  /** HTTP/1.0 knows no interim answers: only an event stream of it can be probed. */
  async #probe(canInterim: boolean): Promise<void> {
    const { raw } = this.#reply;
    let pauseMs = FIRST_PROBE_MS;
    while (!this.#over.signal.aborted && !raw.destroyed && !raw.writableEnded) {
      if (!raw.headersSent) {
        if (canInterim) raw.writeProcessing();
      } else if (String(raw.getHeader('content-type')).startsWith('text/event-stream')) raw.write(':\n\n');
      await this.#context.clock.sleep(pauseMs, this.#over.signal);
      pauseMs = Math.min(2 * pauseMs, MAX_PROBE_MS);
    }
  }

  /** Why it ends early, for the client. */
  reason(error: unknown): unknown {
    return this.signal.aborted && this.signal.reason instanceof Failure ? this.signal.reason : error;
  }

  /** Everything that was opened for it ends; a record that is still open failed, or its client left. */
  async dispose(failure?: unknown): Promise<void> {
    this.#over.abort();
    this.body?.release();
    this.link.abort();
    this.link.release();
    await Promise.allSettled(this.#generators.map((generator) => generator.return(undefined)));
    for (const record of this.#records) {
      this.#context.requests.close(record, this.isGone ? 'cancelled' : 'failed', 'error', failure);
    }
  }
}

/** A name that a log can bear. */
const NAME = /^[\w.:-]{1,128}$/;
const TRACEPARENT = /^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/;

/** What the client's headers call its request. */
export function namesOf({ headers }: FastifyRequest): RequestNames {
  const given = headers['x-request-id'];
  return {
    clientId: typeof given === 'string' && NAME.test(given) ? given : undefined,
    traceId: TRACEPARENT.exec(String(headers['traceparent'] ?? ''))?.[1],
  };
}

/** Runs `work` under a scope of its own. */
export async function inScope<T>(
  context: ApiContext,
  request: FastifyRequest,
  reply: FastifyReply,
  work: (scope: RequestScope) => Promise<T>,
): Promise<T> {
  const scope = new RequestScope(context, request, reply);
  let failure: unknown;
  try {
    return await work(scope);
  } catch (error) {
    failure = scope.reason(error);
    if (!scope.isGone) context.metrics.failed(failure);
    throw failure;
  } finally {
    await scope.dispose(failure);
  }
}
