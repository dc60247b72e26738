/**
 * Server-sent events. Headers go out with the first event, so that a failure before it is an HTTP status; one after it is an
 * event of its own and the end. A reader that does not read stops the writer, not the memory.
 */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { errorBody } from './errors.ts';

/** Aborts when the client is gone before the answer was finished (R2). */
export function abortOnDisconnect(request: FastifyRequest, reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const check = (): void => {
    if (!reply.raw.writableFinished) controller.abort();
  };
  reply.raw.on('close', check);
  request.raw.on('error', check);
  return controller.signal;
}

export async function sendEvents(
  reply: FastifyReply,
  events: AsyncGenerator,
  headers: () => Record<string, string>,
  signal: AbortSignal,
): Promise<void> {
  const first = await events.next();
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    connection: 'keep-alive',
    ...headers(),
  });
  try {
    for (let event = first; !event.done; event = await events.next()) await write(raw, event.value, signal);
    raw.end('data: [DONE]\n\n');
  } catch (error) {
    if (!signal.aborted) raw.end(`data: ${JSON.stringify(errorBody(error))}\n\n`);
  } finally {
    await events.return(undefined);
  }
}

async function write(raw: ServerResponse, event: unknown, signal: AbortSignal): Promise<void> {
  if (raw.write(`data: ${JSON.stringify(event)}\n\n`) || signal.aborted) return;
  await once(raw, 'drain', { signal });
}
