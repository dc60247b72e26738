/**
 * Server-sent events. Headers are sent with the first event, so that a failure before it has an HTTP status; a later failure is sent
 * as the last event. An idle stream sends comments, so that no proxy takes it for dead; its first comment sends the headers too. A
 * slow reader stops the writer instead of filling memory, and is cut off after `stalledReaderMs`.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { linkSignals, DONE } from '../../../shared/base/signal.ts';
import type { RequestScope } from './request_scope.ts';

/** Clock, time limits and headers of an event stream. */
export interface EventStreamOptions {
  readonly clock: Clock;
  /** A reader that takes nothing for this long is ended. */
  readonly stalledReaderMs: number;
  /** A stream on which nothing was sent for this long sends a comment, its first after 2 s; 0: never. */
  readonly keepAliveMs: number;
  readonly headers: () => Record<string, string>;
  readonly form: EventForm;
}

/** Text of an API's events. */
export interface EventForm {
  /** Returns the text of an event with this value. */
  event(value: unknown): string;
  /** Sent while there is no event. */
  readonly keepAlive: string;
  /** Sent behind the last event. */
  readonly end: string;
}

/** Milliseconds until the first comment of a stream on which nothing was sent: clients wait less long for headers than for events. */
const FIRST_MS = 2_000;

/**
 * Sends each event as a server-sent event, with keep-alive comments between them and the form's end. @throws Failure
 * `deadline_exceeded` when the reader stalls, `cancelled` when the request ends; errors of `events` are passed on.
 */
export async function sendEvents(
  events: AsyncGenerator,
  scope: RequestScope,
  { clock, stalledReaderMs, keepAliveMs, headers, form }: EventStreamOptions,
): Promise<void> {
  const { sink } = scope;
  const begin = (): void => {
    if (sink.hasBegun) return;
    sink.begin(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache', ...headers() });
  };
  const over = new AbortController();
  let lastMs = clock.nowMs();
  const sendComments = async (): Promise<void> => {
    while (!over.signal.aborted) {
      const restMs = lastMs + (sink.hasBegun ? keepAliveMs : Math.min(keepAliveMs, FIRST_MS)) - clock.nowMs();
      if (restMs > 0) {
        await clock.sleep(restMs, over.signal);
        continue;
      }
      lastMs = clock.nowMs();
      if (scope.isGone || sink.isBehind) continue;
      begin();
      sink.write(form.keepAlive);
    }
  };
  if (keepAliveMs > 0) void sendComments();
  try {
    let event = await events.next();
    begin();
    for (; !event.done; event = await events.next()) {
      lastMs = clock.nowMs();
      if (sink.write(form.event(event.value)) || scope.isGone) continue;
      await drained(scope, clock, stalledReaderMs);
    }
    sink.end(form.end);
  } finally {
    over.abort(DONE);
  }
}

/** Waits until the reader has caught up. @throws Failure when the reader takes nothing for `timeoutMs`, or the request ends. */
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
  throw new Failure('deadline_exceeded', `the client read nothing for ${timeoutMs} ms`);
}
