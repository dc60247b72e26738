/** All traces that a router has: those of active requests, and those that are kept of finished ones. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { SpanContext, Tracing } from '../../../shared/base/tracing/tracing.ts';
import { KeptRequests } from './kept_requests.ts';
import type { RequestKind } from './request_kind.ts';
import { RequestTrace, type EndPhase } from './request_log.ts';
import { RequestSpans } from './request_spans.ts';

/** Callbacks of a {@link RequestLog}, for counts over all requests. */
export interface RequestListener {
  /** Called when the first token has come; `trace` has its time and sources. */
  readonly onFirstToken: (trace: RequestTrace) => void;
  /** Called for each token after the first, with the milliseconds since the one before. */
  readonly onToken: (trace: RequestTrace, ms: number) => void;
  readonly onClosed: (trace: RequestTrace) => void;
}

/** Active request traces, and finished ones as {@link KeptRequests} keeps them. */
export class RequestLog {
  readonly #active = new Set<RequestTrace>();
  /** Active requests whose first token was counted. */
  readonly #counted = new Set<RequestTrace>();
  readonly #kept: KeptRequests<RequestTrace>;
  readonly #clock: Clock;
  readonly #onClosed: (trace: RequestTrace) => void;
  #listener: RequestListener | undefined;
  #numOpened = 0;
  #numClosed = 0;
  readonly #tracing: Tracing | undefined;

  /** `most` is the number of finished requests that are kept whatever became of them. */
  constructor(clock: Clock, onClosed: (trace: RequestTrace) => void, most: number, tracing?: Tracing) {
    this.#clock = clock;
    this.#tracing = tracing;
    this.#onClosed = onClosed;
    this.#kept = new KeptRequests(most);
  }

  /** Calls `listener` from now on. */
  listen(listener: RequestListener): void {
    this.#listener = listener;
  }

  /** Opens the trace of a prompt; `first` is that of the first prompt of the same HTTP request, below whose span this one's is. */
  open(id: string, kind: RequestKind, names: RequestTrace['names'], first?: RequestTrace): RequestTrace {
    const trace = new RequestTrace({ id, kind, names, sequence: ++this.#numOpened }, this.#clock);
    return this.#add(trace, first?.spans?.context ?? names.parent);
  }

  /** Opens the trace of a further sample of the prompt of `first`. */
  openSample(id: string, first: RequestTrace): RequestTrace {
    const { kind, names } = first;
    const trace = new RequestTrace({ id, kind, names, sequence: ++this.#numOpened }, this.#clock, first);
    return this.#add(trace, first.spans?.context);
  }

  #add(trace: RequestTrace, parent: SpanContext | undefined): RequestTrace {
    if (this.#tracing) trace.spans = new RequestSpans(this.#tracing, this.#clock, parent);
    this.#active.add(trace);
    return trace;
  }

  /** Counts a token of a request; `ms` is the time since the one before, undefined for the first one. */
  token(trace: RequestTrace, ms: number | undefined): void {
    if (ms !== undefined) this.#listener?.onToken(trace, ms);
    else this.#count(trace);
  }

  #count(trace: RequestTrace): void {
    this.#counted.add(trace);
    this.#listener?.onFirstToken(trace);
  }

  /** Ends a trace and keeps it among the finished ones. Only the first call for a trace counts. */
  close(trace: RequestTrace, phase: EndPhase, finishReason: string, failure?: unknown): void {
    if (!this.#active.delete(trace)) return;
    trace.end(phase, finishReason, failure);
    this.#numClosed++;
    this.#kept.add(trace, this.#clock.nowMs());
    this.#onClosed(trace);
    // An embedding has no tokens that could be counted before.
    if (trace.ttftMs !== undefined && !this.#counted.has(trace)) this.#count(trace);
    this.#counted.delete(trace);
    this.#listener?.onClosed(trace);
  }

  /** Number of requests that have ended. */
  get numClosed(): number {
    return this.#numClosed;
  }

  /** Returns up to `count` requests that ended last, newest end first. */
  lastClosed(count: number): RequestTrace[] {
    return this.#kept.last(count);
  }

  /** Active requests, newest first. */
  get active(): RequestTrace[] {
    return [...this.#active].reverse();
  }

  /** Returns all kept requests, those that started last first. */
  all(): RequestTrace[] {
    return [...this.#active, ...this.#kept.list(this.#clock.nowMs())].sort((a, b) => b.sequence - a.sequence);
  }

  /** Returns up to `limit` requests, those that started last first. */
  list(limit: number): RequestTrace[] {
    return this.all().slice(0, limit);
  }
}
