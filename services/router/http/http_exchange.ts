/**
 * The HTTP side of an exchange: the client's ids, detection of a client that has left, and the sink of the answer.
 *
 * A client that has only closed its side (FIN after the request) gets its answer. A client that is gone looks the same until
 * something is written to it, so after a FIN the router probes the connection: with HTTP/1.1 102 (Processing), or with a comment
 * in an event stream.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { Backoff } from '../../../shared/base/backoff.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import { DONE } from '../../../shared/base/signal.ts';
import { readTraceparent } from '../../../shared/base/tracing/tracing.ts';
import type { Body } from '../api/bodies.ts';
import { targetTextsOf } from '../api/request_targets.ts';
import type { Exchange, RequestNames, Sink } from '../api/exchange.ts';

/**
 * Milliseconds between probes: the first pause, and the longest. Two writes detect a client that is gone: the first is answered by a
 * reset, the second fails.
 */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 5_000;

/** Client request ids that are safe to log. */
const NAME = /^[\w.:-]{1,128}$/;

/** Reads the client's request id (`x-request-id`) and span (`traceparent`); each is undefined when absent or malformed. */
export function namesOf(headers: IncomingHttpHeaders): RequestNames {
  const given = headers['x-request-id'];
  const parent = readTraceparent(headers['traceparent']);
  return {
    clientId: typeof given === 'string' && NAME.test(given) ? given : undefined,
    traceId: parent?.traceId,
    parent,
  };
}

interface Serving {
  readonly clock: Clock;
  /** Counts answers that have not left this process: called with 1 and, once, with -1. */
  readonly answering: (change: 1 | -1) => void;
  /** Called before status and headers of the answer are set; undefined where nobody adds any. */
  readonly onBegin: (() => void) | undefined;
}

/** Runs `serve` with the exchange, and watches its client until the answer has ended. */
export async function withClient(
  request: IncomingMessage,
  response: ServerResponse,
  body: Body,
  { clock, answering, onBegin }: Serving,
  serve: (exchange: Omit<Exchange, 'caller'>) => Promise<void>,
): Promise<void> {
  const gone = new AbortController();
  let over: AbortController | undefined;
  const { socket } = request;
  answering(1);
  let isAnswered = false;
  // Listen to the socket too: a response that waits for another on its connection emits no 'close'.
  const closed = (): void => {
    socket.removeListener('close', closed);
    response.removeListener('close', closed);
    if (!response.writableFinished) gone.abort(DONE);
    if (!isAnswered) answering(-1);
    isAnswered = true;
  };
  socket.once('close', closed);
  response.once('close', closed);
  if (socket.destroyed) closed();
  const halfClosed = (): void => {
    over = new AbortController();
    void probe(response, request.httpVersion !== '1.0', clock, over.signal);
  };
  socket.once('end', halfClosed);
  const names = { ...namesOf(request.headers), address: socket.remoteAddress };
  if (names.clientId !== undefined) response.setHeader('x-request-id', names.clientId);
  try {
    await serve({
      names,
      targets: targetTextsOf(request.headers),
      body,
      gone: gone.signal,
      sink: new HttpSink(response, onBegin),
    });
  } finally {
    over?.abort(DONE);
    socket.removeListener('end', halfClosed);
  }
}

/** Probes a half-closed connection until `over` aborts. HTTP/1.0 has no interim responses, so only its event streams can be probed. */
async function probe(response: ServerResponse, canInterim: boolean, clock: Clock, over: AbortSignal): Promise<void> {
  const backoff = new Backoff({ clock, firstMs: FIRST_PROBE_MS, mostMs: MAX_PROBE_MS });
  while (!over.aborted && !response.destroyed && !response.writableEnded) {
    if (!response.headersSent) {
      if (canInterim) response.writeProcessing();
    } else if (String(response.getHeader('content-type')).startsWith('text/event-stream')) response.write(':\n\n');
    await backoff.pause(over);
  }
}

class HttpSink implements Sink {
  readonly #response: ServerResponse;
  readonly #onBegin: (() => void) | undefined;

  constructor(response: ServerResponse, onBegin: (() => void) | undefined) {
    this.#response = response;
    this.#onBegin = onBegin;
  }

  get hasBegun(): boolean {
    return this.#response.headersSent;
  }

  get isBehind(): boolean {
    const { writableNeedDrain, socket } = this.#response;
    return writableNeedDrain || socket?.writableNeedDrain === true;
  }

  begin(status: number, headers: Readonly<Record<string, string>>): void {
    this.#response.statusCode = status;
    this.#onBegin?.();
    for (const [name, value] of Object.entries(headers)) this.#response.setHeader(name, value);
  }

  write(text: string): boolean {
    const response = this.#response;
    const { socket } = response;
    // A chunk without bytes would end the answer.
    if (text === '' || response.writableEnded) return !this.isBehind;
    // A response writes a chunk in four parts. In one it costs a fifth less CPU time from the message of an instance to the socket. Nothing
    // of this response, nor of one before it on the connection, waits outside the socket's own queue then.
    const isAlone = socket?.writableLength === response.writableLength;
    const isDirect = this.hasBegun && response.chunkedEncoding && isAlone;
    if (!socket || !isDirect) return response.write(text);
    return socket.write(`${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`);
  }

  end(text: string): void {
    if (!this.hasBegun) this.#response.setHeader('content-length', Buffer.byteLength(text));
    this.#response.end(text);
  }

  async drained(signal: AbortSignal): Promise<void> {
    const response = this.#response;
    const { socket } = response;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        response.off('drain', done);
        socket?.off('drain', done);
        response.off('close', done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      response.once('drain', done);
      socket?.once('drain', done);
      response.once('close', done);
      signal.addEventListener('abort', done);
      if (signal.aborted || !this.isBehind) done();
    });
  }

  destroy(): void {
    this.#response.destroy();
  }
}
