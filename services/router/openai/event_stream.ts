/**
 * Server-sent events. Headers go out with the first event, so that a failure before it is an HTTP status; one after it is an
 * event of its own and the end. A reader that does not read stops the writer, not the memory, and for so long only.
 */
import type { ServerResponse } from 'node:http';
import type { FastifyReply } from 'fastify';
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { errorBody } from './errors.ts';
import type { RequestScope } from './request_scope.ts';

export interface EventStreamOptions {
  readonly clock: Clock;
  /** A reader that takes nothing for this long is ended. */
  readonly stalledReaderMs: number;
  readonly headers: () => Record<string, string>;
}

export async function sendEvents(
  reply: FastifyReply,
  events: AsyncGenerator,
  scope: RequestScope,
  { clock, stalledReaderMs, headers }: EventStreamOptions,
): Promise<void> {
  const first = await events.next();
  reply.hijack();
  const { raw } = reply;
  // Set rather than written: a probe of a half-closed client looks at the type.
  for (const [name, value] of Object.entries({
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    ...headers(),
  })) {
    raw.setHeader(name, value);
  }
  raw.writeHead(200);
  try {
    for (let event = first; !event.done; event = await events.next()) {
      if (raw.write(`data: ${JSON.stringify(event.value)}\n\n`) || scope.isGone) continue;
      await drained(raw, scope.signal, clock, stalledReaderMs);
    }
    raw.end('data: [DONE]\n\n');
  } catch (error) {
    if (!scope.isGone) raw.end(`data: ${JSON.stringify(errorBody(scope.reason(error)))}\n\n`);
    throw error;
  }
}

/** @throws Failure when the reader takes nothing in time, or the request ends. */
async function drained(raw: ServerResponse, signal: AbortSignal, clock: Clock, timeoutMs: number): Promise<void> {
  const done = new AbortController();
  const wake = (): void => {
    done.abort();
  };
  raw.once('drain', wake);
  raw.once('close', wake);
  signal.addEventListener('abort', wake, { once: true });
  try {
    await clock.sleep(timeoutMs, done.signal);
  } finally {
    raw.off('drain', wake);
    raw.off('close', wake);
    signal.removeEventListener('abort', wake);
  }
  if (signal.aborted) throw new Failure('cancelled', 'the request ended while its reader had stopped');
  if (raw.writableNeedDrain && !raw.destroyed) raw.destroy();
  if (raw.destroyed) throw new Failure('deadline_exceeded', `the reader took nothing for ${timeoutMs} ms`);
}
