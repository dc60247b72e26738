/**
 * Spans of the calls that a process serves, made from the messages of the calls: one for the call, and for Prefill, Decode and Embed its
 * parts by the report of the engine. The handlers know nothing of it, but for those of Decode and Prefill, whose calls share a stream.
 *
 *   decode  ├─ queue ─┼─ load ─┼─ compute ─┼──────── generate ────────┤
 *                                          first token
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import { isRecorded, type SpanAttributes, type SpanContext, type Tracing } from '../base/tracing/tracing.ts';
import type { CallName, Handler, Reply, Request } from '../net/network.ts';
import type { FetchReply, PrefillReply, Report, RequestContext } from '../protocol/messages.ts';

/** Returns a handler that records spans of the calls that `handler` serves, of requests whose trace is recorded. */
export function traced<M extends CallName>(
  name: M,
  handler: Handler<M>,
  { tracing, clock }: { readonly tracing: Tracing; readonly clock: Clock },
): Handler<M> {
  return async function* (requests, call) {
    const span = new CallSpan(name, tracing, clock);
    try {
      for await (const reply of handler(below(span, requests), call)) {
        span.replied(reply);
        yield reply;
      }
    } catch (error) {
      span.error = messageOf(error);
      throw error;
    } finally {
      span.end();
    }
  };
}

/** Yields the requests of a call; the first one's context names the span of the call as the parent of what is called for it. */
async function* below<M extends CallName>(
  span: CallSpan,
  requests: AsyncIterable<Request<M>>,
): AsyncGenerator<Request<M>> {
  let isFirst = true;
  for await (const request of requests) {
    yield isFirst ? span.begin(request) : request;
    isFirst = false;
  }
}

type MayStart = {
  readonly context?: RequestContext | null;
  readonly start?: { readonly context?: RequestContext | null };
};

/** Name of a call with a span. */
type SpanName = CallName | 'prefill';

/** Span of one call, which counts what its replies say. */
export class CallSpan {
  readonly #name: SpanName;
  readonly #tracing: Tracing;
  readonly #clock: Clock;
  readonly #startMs: number;
  #of: { readonly context: SpanContext; readonly parent: string; readonly requestId: string } | undefined;
  error: string | undefined;
  #firstMs: number | undefined;
  #report: Report | undefined;
  #numTokens = 0;
  #numRecords = 0;
  #bytes = 0;

  constructor(name: SpanName, tracing: Tracing, clock: Clock) {
    this.#name = name;
    this.#tracing = tracing;
    this.#clock = clock;
    this.#startMs = clock.nowMs();
  }

  /** Returns the first request of the call, with this span as the parent of what follows; unchanged where nothing is recorded. */
  begin<T>(request: T): T {
    const message = request as T & MayStart;
    const given = message.start?.context ?? message.context;
    if (!given?.parentSpan || !given.traceFlags || !isRecorded({ flags: given.traceFlags })) return request;
    const { traceId, parentSpan: parent, traceFlags: flags, requestId } = given;
    this.#of = { context: { traceId, spanId: this.#tracing.newSpanId(), flags }, parent, requestId };
    const context: RequestContext = { ...given, parentSpan: this.#of.context.spanId };
    return message.start ? { ...message, start: { ...message.start, context } } : { ...message, context };
  }

  /** Counts an output token of a Decode call, the first of which has a report. */
  token(report: Report | undefined): void {
    if (!this.#of) return;
    this.#numTokens++;
    if (this.#firstMs === undefined) this.#computed(report ?? null);
  }

  replied(reply: Reply<CallName> | PrefillReply): void {
    if (!this.#of) return;
    if (this.#name === 'fetch') {
      const { numReady, totalBytes, offset, data, frame } = reply as FetchReply;
      this.#bytes += numReady > 0 ? (frame > 1 ? 0 : numReady * totalBytes) : data.length;
      this.#numRecords += numReady > 0 ? (frame > 1 ? 0 : numReady) : offset === 0 ? 1 : 0;
    } else if (this.#name === 'prefill' || this.#name === 'embed') {
      const { report } = reply as { readonly report?: Report | null };
      if (report) this.#computed(report);
    }
  }

  #computed(report: Report | null): void {
    this.#firstMs = this.#clock.nowMs();
    this.#report = report ?? undefined;
  }

  end(): void {
    if (!this.#of) return;
    const { context, parent, requestId } = this.#of;
    const endMs = this.#clock.nowMs();
    const attributes = { 'gen_ai.request.id': requestId, ...this.#attributes() };
    const span = {
      kind: 'server',
      context,
      parent,
      startMs: this.#startMs,
      endMs,
      attributes,
      error: this.error,
    } as const;
    this.#tracing.record({ ...span, name: this.#name });
    this.#recordParts(context, endMs);
  }

  #attributes(): SpanAttributes {
    if (this.#name === 'fetch') return { 'penstock.records': this.#numRecords, 'penstock.bytes': this.#bytes };
    const report = this.#report;
    return {
      ...(this.#name === 'decode' ? { 'gen_ai.usage.output_tokens': this.#numTokens } : {}),
      'penstock.tokens.cached': report?.cachedTokens,
      'penstock.tokens.fetched': report?.fetchedTokens,
      'penstock.tokens.computed': report?.computedTokens,
      'penstock.fetched_bytes': report?.fetchedBytes,
    };
  }

  /** Records the parts by the durations of the report, which end when the first token, or the last block, was there. */
  #recordParts({ traceId, spanId: parent, flags }: SpanContext, endMs: number): void {
    if (!this.#report || this.#firstMs === undefined) return;
    const { queueMs, loadMs, computeMs } = this.#report;
    let startMs = this.#firstMs - queueMs - loadMs - computeMs;
    const part = (name: string, ms: number): void => {
      const context = { traceId, spanId: this.#tracing.newSpanId(), flags };
      this.#tracing.record({ name, kind: 'internal', context, parent, startMs, endMs: startMs + ms, attributes: {} });
      startMs += ms;
    };
    part('queue', queueMs);
    part('load', loadMs);
    part('compute', computeMs);
    if (this.#name === 'decode') part('generate', Math.max(0, endMs - this.#firstMs));
  }
}
