/** All requests that a router has records of: the active ones, and those that are kept of finished ones. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { SpanContext, Tracing } from '../../../shared/base/tracing/tracing.ts';
import { KeptRequests } from './kept_requests.ts';
import { activeRequest, ClosedRequest, type LoggedRequest } from './logged_request.ts';
import type { OpenedEvent, RequestEvent } from './request_events.ts';
import type { RequestListener } from './request_listener.ts';
import type { RequestIds } from './request_facts.ts';
import type { RequestKind } from './request_kind.ts';
import type { RequestRecord } from './request_record.ts';
import { RequestSpans } from './request_spans.ts';
import { RequestTrace } from './request_trace.ts';

/** Bytes of finished requests that are kept at most. */
const MAX_BYTES = 64 << 20;

/** Opens requests, and keeps the records of active ones, and of finished ones as {@link KeptRequests} does. */
export class RequestLog implements RequestListener {
  readonly #active = new Set<RequestRecord>();
  readonly #kept: KeptRequests<ClosedRequest>;
  readonly #clock: Clock;
  readonly #listeners: readonly RequestListener[];
  readonly #tracing: Tracing | undefined;
  #numOpened = 0;
  #numClosed = 0;

  /** `listeners` are told of the events of all requests; `most` is the number of finished ones that are kept whatever became of them, as long as they take MAX_BYTES at most. */
  constructor(clock: Clock, listeners: readonly RequestListener[], most: number, tracing?: Tracing) {
    this.#clock = clock;
    this.#tracing = tracing;
    this.#listeners = listeners;
    this.#kept = new KeptRequests(most, MAX_BYTES);
  }

  /** Opens the record of a prompt; `first` is that of the first prompt of the same HTTP request, below whose span this one's is. */
  open(id: string, kind: RequestKind, names: RequestIds, first?: RequestTrace): RequestTrace {
    return this.#open({ id, requestKind: kind, names }, first?.spans?.context ?? names.parent);
  }

  /** Opens the record of a further sample of the prompt of `first`. */
  openSample(id: string, first: RequestTrace): RequestTrace {
    const { kind, facts } = first.record;
    return this.#open({ id, requestKind: kind, names: facts.names, sampleOf: first.record }, first.spans?.context);
  }

  #open(
    opened: Pick<OpenedEvent, 'id' | 'requestKind' | 'names' | 'sampleOf'>,
    parent: SpanContext | undefined,
  ): RequestTrace {
    const atMs = this.#clock.nowMs();
    const spans = this.#tracing && new RequestSpans(this.#tracing, parent, atMs);
    const more = { sequence: ++this.#numOpened, traceId: spans?.context.traceId, startedAtMs: this.#clock.wallMs() };
    // The log comes first: whatever becomes of another listener, a request that has ended is active no more.
    const listeners = [this, ...(spans ? [spans] : []), ...this.#listeners];
    return new RequestTrace({ kind: 'opened', ...opened, ...more }, this.#clock, listeners, spans, atMs);
  }

  on(record: RequestRecord, event: RequestEvent, atMs: number): void {
    if (event.kind === 'opened') this.#active.add(record);
    else if (event.kind === 'ended') {
      this.#active.delete(record);
      this.#numClosed++;
      this.#kept.add(new ClosedRequest(record, atMs));
    } else if (event.kind !== 'token' && record.totalMs !== undefined) this.#changed(record, atMs);
  }

  /** Writes the record of a request again that has ended, and of which a prefill or an attempt ended after it. */
  #changed(record: RequestRecord, atMs: number): void {
    const { sequence } = record;
    const rewrite = (closed: ClosedRequest): void => {
      closed.rewrite(record);
    };
    this.#kept.change((closed) => closed.sequence === sequence, rewrite, atMs);
  }

  /** Number of requests that have ended. */
  get numClosed(): number {
    return this.#numClosed;
  }

  /** Returns up to `count` requests that ended last, newest end first. */
  lastClosed(count: number): LoggedRequest[] {
    return this.#kept.last(count);
  }

  /** Active requests, newest first. */
  get active(): LoggedRequest[] {
    return Array.from(this.#active, activeRequest).reverse();
  }

  /** Returns all kept requests, those that started last first. */
  all(): LoggedRequest[] {
    return [...this.active, ...this.#kept.list(this.#clock.nowMs())].sort((a, b) => b.sequence - a.sequence);
  }

  /** Returns up to `limit` requests, those that started last first. */
  list(limit: number): LoggedRequest[] {
    return this.all().slice(0, limit);
  }
}
