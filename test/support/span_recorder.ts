/** Spans in memory. */
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import type { Span, SpanContext, Tracing } from '../../shared/base/tracing/tracing.ts';

/** Tracing that keeps its spans, and a clock that a test advances. */
export class SpanRecorder implements Tracing {
  readonly spans: Span[] = [];
  nowMs = 1_000;
  #next = 1;
  readonly clock = { ...systemClock, nowMs: () => this.nowMs, wallMs: () => 0 } satisfies Clock;

  newSpanId(): string {
    return `span-${this.#next++}`;
  }

  begin(parent: SpanContext | undefined): SpanContext {
    return { traceId: parent?.traceId ?? 'new', spanId: this.newSpanId(), flags: parent?.flags ?? 1 };
  }

  record(span: Span): void {
    this.spans.push(span);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** Names of the spans with start and end since the beginning, in ms. */
  get times(): string[] {
    return this.spans.map(({ name, startMs, endMs }) => `${name} ${startMs - 1_000}-${endMs - 1_000}`);
  }
}
