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
  readonly contentType: string;
  /** Returns the text of an event with this value. */
  event(value: unknown): string;
  /** Sent while there is no event; empty: nothing is. */
  readonly keepAlive: string;
  /** Sent after the last event. */
  readonly end: string;
}

/** Way of the events of an answer to their stream. */
export interface EventWriter {
  readonly form: EventForm;
  /** Sends an event with this value. */
  send(value: unknown): void;
  /** Sends an event whose text is made. */
  sendText(event: string): void;
}

/** Content type of server-sent events. */
export const eventStreamType = 'text/event-stream; charset=utf-8';

/** Milliseconds until the first comment of a stream on which nothing was sent: clients wait less long for headers than for events. */
const FIRST_MS = 2_000;

/**
 * One stream of events to a reader, with keep-alive comments between them. Whoever sends waits for {@link EventStream.room} after each delta
 * of an answer, and closes the stream when nothing more comes.
 */
export class EventStream implements EventWriter {
  readonly #scope: Pick<RequestScope, 'sink' | 'signal' | 'isGone'>;
  readonly #options: EventStreamOptions;
  readonly #over = new AbortController();
  /** Events of one delta of an answer at most, for a reader that is behind (P1). */
  readonly #waiting: string[] = [];
  /** Events of the delta that is being sent, which are written together. */
  #text = '';
  #lastMs: number;
  #hasSent = false;
  #isBroken = false;

  constructor(scope: Pick<RequestScope, 'sink' | 'signal' | 'isGone'>, options: EventStreamOptions) {
    this.#scope = scope;
    this.#options = options;
    this.#lastMs = options.clock.nowMs();
    if (options.keepAliveMs > 0 && options.form.keepAlive !== '') void this.#sendComments();
  }

  /** Whether an event was sent that can still be followed by others. */
  get canGoOn(): boolean {
    return (this.#hasSent || this.#text !== '') && !this.#isBroken;
  }

  get form(): EventForm {
    return this.#options.form;
  }

  send(value: unknown): void {
    this.sendText(this.form.event(value));
  }

  /** Sends an event with the next call of {@link room}. */
  sendText(event: string): void {
    if (this.#waiting.length > 0 || this.#isBehind) this.#waiting.push(event);
    else this.#text += event;
  }

  /**
   * Sends the events of a delta, and waits for a reader that is behind; undefined while there is room. Rejects with Failure
   * `deadline_exceeded` when the reader stalls, `cancelled` when the request ends.
   */
  room(): Promise<void> | undefined {
    this.#flush();
    return this.#waiting.length > 0 || this.#isBehind ? this.#catchUp() : undefined;
  }

  /** Ends the stream, after its last event. */
  end(): void {
    this.#flush();
    this.#begin();
    this.#scope.sink.end(this.form.end);
  }

  /** Sends what was to come with the next call of {@link room}, and no more comments. A second call does nothing. */
  close(): void {
    this.#flush();
    this.#over.abort(DONE);
  }

  get #isBehind(): boolean {
    return this.#scope.sink.isBehind && !this.#scope.isGone;
  }

  async #catchUp(): Promise<void> {
    const { clock, stalledReaderMs } = this.#options;
    try {
      for (;;) {
        if (this.#isBehind) await drained(this.#scope, clock, stalledReaderMs);
        const next = this.#waiting.shift();
        if (next === undefined) return;
        this.#write(next);
      }
    } catch (error) {
      this.#isBroken = true;
      throw error;
    }
  }

  #flush(): void {
    const text = this.#text;
    this.#text = '';
    if (text !== '') this.#write(text);
  }

  #write(text: string): void {
    this.#begin();
    this.#hasSent = true;
    this.#lastMs = this.#options.clock.nowMs();
    this.#scope.sink.write(text);
  }

  #begin(): void {
    const { sink } = this.#scope;
    const { form, headers } = this.#options;
    if (sink.hasBegun) return;
    sink.begin(200, { 'content-type': form.contentType, 'cache-control': 'no-cache', ...headers() });
  }

  async #sendComments(): Promise<void> {
    const { clock, keepAliveMs, form } = this.#options;
    const { sink } = this.#scope;
    const over = this.#over.signal;
    while (!over.aborted) {
      const restMs = this.#lastMs + (sink.hasBegun ? keepAliveMs : Math.min(keepAliveMs, FIRST_MS)) - clock.nowMs();
      if (restMs > 0) {
        await clock.sleep(restMs, over);
        continue;
      }
      this.#lastMs = clock.nowMs();
      if (this.#scope.isGone || sink.isBehind) continue;
      this.#begin();
      sink.write(form.keepAlive);
    }
  }
}

/** Waits until the reader has caught up. @throws Failure when the reader takes nothing for `timeoutMs`, or the request ends. */
async function drained(
  { sink, signal }: Pick<RequestScope, 'sink' | 'signal'>,
  clock: Clock,
  timeoutMs: number,
): Promise<void> {
  const waiting = linkSignals(signal);
  const room = sink.drained(waiting.signal).then(() => {
    waiting.abort(DONE);
  });
  await clock.sleep(timeoutMs, waiting.signal);
  waiting.release();
  waiting.abort(DONE);
  await room;
  if (signal.aborted) throw new Failure('cancelled', 'the request ended while its reader had stopped');
  if (!sink.isBehind) return;
  sink.destroy();
  throw new Failure('deadline_exceeded', `the client read nothing for ${timeoutMs} ms`);
}
