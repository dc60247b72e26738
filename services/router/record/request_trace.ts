/** One request as those see it that serve it: they emit its events, which its record takes and listeners are told of. */
import type { Clock } from '../../../shared/base/clock.ts';
import { Condition } from '../../../shared/base/condition.ts';
import type { EndPhase, OpenedEvent, RequestEvent, StepEvent } from './request_events.ts';
import type { RequestListener } from './request_listener.ts';
import { RequestFold, type RequestRecord } from './request_record.ts';
import type { RequestSpans } from './request_spans.ts';
import { unquoted } from './unquoted.ts';

/** Emits the events of one request. */
export class RequestTrace {
  readonly #fold: RequestFold;
  /** Undefined without tracing. */
  readonly spans: RequestSpans | undefined;
  readonly #clock: Clock;
  readonly #listeners: readonly RequestListener[];
  /** Notified when a prefill has come further. */
  readonly #prefillChanged = new Condition();

  /** Opens the record, and tells `listeners`, in their order. */
  constructor(
    opened: OpenedEvent,
    clock: Clock,
    listeners: readonly RequestListener[],
    spans: RequestSpans | undefined,
    atMs: number,
  ) {
    this.#fold = RequestFold.opened(opened, atMs);
    this.#clock = clock;
    this.spans = spans;
    this.#listeners = listeners;
    this.#tell(opened, atMs);
  }

  get record(): RequestRecord {
    return this.#fold;
  }

  get id(): string {
    return this.#fold.id;
  }

  /** The client's id of the request, else its own: answers are named by it. */
  get shownId(): string {
    return this.#fold.facts.names.clientId ?? this.#fold.id;
  }

  /** Milliseconds since the request was opened, until its end. */
  get elapsedMs(): number {
    return this.#fold.elapsedMs(this.#clock.nowMs());
  }

  /** Records an event, which happens now. */
  emit(event: StepEvent): void {
    this.#apply(event);
    if (event.kind === 'prefill') this.#prefillChanged.notify();
  }

  /** Records the end of the request; only the first one counts. What `failure` quotes of a prompt is taken from it. */
  end(phase: EndPhase, finishReason: string, failure?: unknown): void {
    if (this.#fold.totalMs !== undefined) return;
    this.#apply({ kind: 'ended', phase, finishReason, failure: unquoted(failure) });
  }

  /** Resolves when no prefill of the request runs, or when `signal` aborts. */
  async prefillsEnded(signal: AbortSignal): Promise<void> {
    await this.#prefillChanged.until(() => !this.#fold.counts.isPrefilling, signal);
  }

  #apply(event: RequestEvent): void {
    const atMs = this.#clock.nowMs();
    this.#fold.apply(event, atMs);
    this.#tell(event, atMs);
  }

  #tell(event: RequestEvent, atMs: number): void {
    for (const listener of this.#listeners) listener.on(this.#fold, event, atMs);
  }
}
