/**
 * HTTP's side of an exchange: who asks, whether somebody is still there, and where the answer goes.
 *
 * A client that has only closed its side (FIN after the request) gets its answer. One that is gone looks the same until something
 * is written to it, so it is told that its request is being processed: HTTP/1.1 102, or a comment in an event stream.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { Backoff } from '../../../shared/base/backoff.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import type { Body } from '../openai/bodies.ts';
import type { Exchange, RequestNames, Sink } from '../openai/exchange.ts';

/** Two writes find out that nobody is there: the first is answered by a reset, the second meets it. */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 5_000;

/** A name that a log can bear. */
const NAME = /^[\w.:-]{1,128}$/;
const TRACEPARENT = /^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/;

/** Reads the client's request id (`x-request-id`) and trace id (`traceparent`); each is undefined when absent or malformed. */
export function namesOf(headers: IncomingHttpHeaders): RequestNames {
  const given = headers['x-request-id'];
  return {
    clientId: typeof given === 'string' && NAME.test(given) ? given : undefined,
    traceId: TRACEPARENT.exec(String(headers['traceparent'] ?? ''))?.[1],
  };
}

/**
 * Hands the exchange to `serve` and looks after its client until the answer has ended. `answering` counts answers that have not
 * left this process: it is told 1 and, once, -1.
 */
export async function withClient(
  request: IncomingMessage,
  response: ServerResponse,
  body: Body,
  { clock, answering }: { readonly clock: Clock; readonly answering: (change: 1 | -1) => void },
  serve: (exchange: Exchange) => Promise<void>,
): Promise<void> {
  const gone = new AbortController();
  const over = new AbortController();
  const { socket } = request;
  answering(1);
  let isAnswered = false;
  // The connection's end, not the answer's: one that waits behind another on its connection never hears of it.
  const closed = (): void => {
    socket.removeListener('close', closed);
    response.removeListener('close', closed);
    if (!response.writableFinished) gone.abort();
    if (!isAnswered) answering(-1);
    isAnswered = true;
  };
  socket.once('close', closed);
  response.once('close', closed);
  if (socket.destroyed) closed();
  const halfClosed = (): void => void probe(response, request.httpVersion !== '1.0', clock, over.signal);
  socket.once('end', halfClosed);
  const names = namesOf(request.headers);
  if (names.clientId !== undefined) response.setHeader('x-request-id', names.clientId);
  try {
    await serve({ names, body, gone: gone.signal, sink: new HttpSink(response) });
  } finally {
    over.abort();
    socket.removeListener('end', halfClosed);
  }
}

/** HTTP/1.0 knows no interim answers: only an event stream of it can be probed. */
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

  constructor(response: ServerResponse) {
    this.#response = response;
  }

  get hasBegun(): boolean {
    return this.#response.headersSent;
  }

  get isBehind(): boolean {
    return this.#response.writableNeedDrain;
  }

  begin(status: number, headers: Readonly<Record<string, string>>): void {
    this.#response.statusCode = status;
    for (const [name, value] of Object.entries(headers)) this.#response.setHeader(name, value);
  }

  write(text: string): boolean {
    return this.#response.write(text);
  }

  end(text: string): void {
    if (!this.hasBegun) this.#response.setHeader('content-length', Buffer.byteLength(text));
    this.#response.end(text);
  }

  async drained(signal: AbortSignal): Promise<void> {
    const response = this.#response;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        response.off('drain', done);
        response.off('close', done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      response.once('drain', done);
      response.once('close', done);
      signal.addEventListener('abort', done);
      if (signal.aborted || !response.writableNeedDrain) done();
    });
  }

  destroy(): void {
    this.#response.destroy();
  }
}
