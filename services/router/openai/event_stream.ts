/**
 * Server-sent events. Headers go out with the first event, so that a failure before it is an HTTP status; one after it is an
 * event of its own and the end. A reader that does not read stops the writer, not the memory, and for so long only.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { linkSignals } from '../../../shared/base/signal.ts';
import type { RequestScope } from './request_scope.ts';

export interface EventStreamOptions {
  readonly clock: Clock;
  /** A reader that takes nothing for this long is ended. */
  readonly stalledReaderMs: number;
  readonly headers: () => Record<string, string>;
}

export async function sendEvents(
  events: AsyncGenerator,
  scope: RequestScope,
  { clock, stalledReaderMs, headers }: EventStreamOptions,
): Promise<void> {
  const { sink } = scope;
  let event = await events.next();
  sink.begin(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache', ...headers() });
  for (; !event.done; event = await events.next()) {
    if (sink.write(`data: ${JSON.stringify(event.value)}\n\n`) || scope.isGone) continue;
    await drained(scope, clock, stalledReaderMs);
  }
  sink.end('data: [DONE]\n\n');
}

/** @throws Failure when the reader takes nothing in time, or the request ends. */
async function drained({ sink, signal }: RequestScope, clock: Clock, timeoutMs: number): Promise<void> {
  const waiting = linkSignals(signal);
  const room = sink.drained(waiting.signal).then(() => {
    waiting.abort();
  });
  await clock.sleep(timeoutMs, waiting.signal);
  waiting.release();
  waiting.abort();
  await room;
  if (signal.aborted) throw new Failure('cancelled', 'the request ended while its reader had stopped');
  if (!sink.isBehind) return;
  sink.destroy();
  throw new Failure('deadline_exceeded', `the reader took nothing for ${timeoutMs} ms`);
}
