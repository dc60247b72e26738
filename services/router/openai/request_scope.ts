/**
 * One request from the moment its bytes are there to the end of its answer: who can end it, what was opened for it, and the one place
 * where it all is let go of (R2). Whatever waits for it waits under its signal, the write to a slow reader included.
 *
 * The signal aborts when the client is gone, when the deadline has passed, or when the router ends; the last two with a Failure as
 * reason, for a client that still listens.
 */
import { Failure } from '../../../shared/base/failure.ts';
import { linkSignals, type Link } from '../../../shared/base/signal.ts';
import type { Body } from './bodies.ts';
import type { RequestTrace } from '../relay/request_log.ts';
import type { ApiContext } from './api_context.ts';
import { jsonType } from './errors.ts';
import type { Exchange, RequestNames, Sink } from './exchange.ts';

/** The relay keeps the deadline and says so in the stream; this ends what waits for a reader behind it. */
const DEADLINE_GRACE_MS = 1_000;

/**
 * Lifetime of one HTTP request: its abort signal, deadline, request traces and generators, all released by {@link
 * RequestScope.dispose}.
 */
export class RequestScope {
  readonly sink: Sink;
  /** The request body; empty once read. */
  readonly body: Body;
  /** On the router's clock. */
  readonly untilMs: number;
  readonly #context: ApiContext;
  readonly #link: Link;
  readonly #gone: AbortSignal;
  readonly #over = new AbortController();
  readonly #records: RequestTrace[] = [];
  /** Traces whose prompts admission still counts. */
  readonly #admitted = new Set<RequestTrace>();
  readonly #generators: AsyncGenerator[] = [];
  #names: RequestNames;

  constructor(context: ApiContext, { names, body, gone, sink }: Exchange) {
    const { clock, requestTimeoutMs, ending } = context;
    this.#context = context;
    this.#names = names;
    this.#gone = gone;
    this.sink = sink;
    this.body = body;
    this.untilMs = clock.nowMs() + requestTimeoutMs;
    this.#link = linkSignals(gone, ending);
    void clock.sleep(requestTimeoutMs + DEADLINE_GRACE_MS, this.#over.signal).then(() => {
      this.#link.abort(new Failure('deadline_exceeded', `the request took over ${requestTimeoutMs} ms`));
    });
  }

  get signal(): AbortSignal {
    return this.#link.signal;
  }

  /** Nobody is there to answer. */
  get isGone(): boolean {
    return this.#gone.aborted;
  }

  /** A record of this request, closed with it. @throws Failure `overloaded` when too many requests are in flight. */
  open(endpoint: string): RequestTrace {
    const { admission, requests, newId } = this.#context;
    admission.enter();
    const record = requests.open(newId(), endpoint, this.#names);
    this.#records.push(record);
    this.#admitted.add(record);
    return record;
  }

  /** Releases the admission of `record` when its prompt has ended, so that another may enter. A second call does nothing. */
  leave(record: RequestTrace): void {
    if (this.#admitted.delete(record)) this.#context.admission.leave();
  }

  /** Sets the client's request id from the body, unless a header set one, on the traces of this request, opened and future ones. */
  named(clientId: string | undefined): void {
    this.#names = { ...this.#names, clientId: this.#names.clientId ?? clientId };
    for (const record of this.#records) record.names = this.#names;
  }

  /** A generator that is ended with the request. */
  own<T extends AsyncGenerator>(generator: T): T {
    this.#generators.push(generator);
    return generator;
  }

  /** The whole answer at once. */
  answer(json: string, headers: Readonly<Record<string, string>>): void {
    this.sink.begin(200, { 'content-type': jsonType, ...headers });
    this.sink.end(json);
  }

  /** Why it ends early, for the client. */
  reason(error: unknown): unknown {
    return this.signal.aborted && this.signal.reason instanceof Failure ? this.signal.reason : error;
  }

  /** Everything that was opened for it ends; a record that is still open failed, or its client left. */
  async dispose(failure?: unknown): Promise<void> {
    this.#over.abort();
    this.body.release();
    this.#link.abort();
    this.#link.release();
    await Promise.allSettled(this.#generators.map((generator) => generator.return(undefined)));
    for (const record of this.#records) {
      this.leave(record);
      this.#context.requests.close(record, this.isGone ? 'cancelled' : 'failed', 'error', failure);
    }
  }
}
