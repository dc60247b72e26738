/**
 * Spans of one request at the router.
 *
 *   request  ├─ tokenise ─┼─ place ─┼─ attempt ──first token───────────┤
 *                                   └─ Prefill and Decode calls: spans of the instances, below the attempt
 *
 * A failover places again, with another attempt. The times are those of the request log.
 */
import { messageOf } from '../../../shared/base/failure.ts';
import type { SpanAttributes, SpanContext, Tracing } from '../../../shared/base/tracing/tracing.ts';
import type { RequestContext } from '../../../shared/protocol/messages.ts';
import type { PlacedEvent, RequestEvent } from './request_events.ts';
import type { RequestListener } from './request_listener.ts';
import { factsAttributes } from './request_facts.ts';
import type { RequestRecord } from './request_record.ts';

const MS_PER_S = 1_000;

/** Spans of one request: its own, and those of its tokenising, placements and attempts. */
export class RequestSpans implements RequestListener {
  /** Span of the request. */
  readonly context: SpanContext;
  readonly #tracing: Tracing;
  readonly #parent: string | undefined;
  readonly #startMs: number;
  /** End of the last span that was recorded. */
  #lastMs: number;
  #attempt:
    { readonly context: SpanContext; readonly startMs: number; readonly attributes: SpanAttributes } | undefined;
  #firstTokenMs: number | undefined;
  #isTokenised = false;

  /** `parent` is the span of the client, or of the request that this is a part of; `startMs` the start on the router's clock. */
  constructor(tracing: Tracing, parent: SpanContext | undefined, startMs: number) {
    this.#tracing = tracing;
    this.context = tracing.begin(parent);
    this.#parent = parent?.spanId;
    this.#startMs = this.#lastMs = startMs;
  }

  /** Fields of the context of a call for the request: below the attempt that runs, else below the request itself. */
  get wire(): Pick<RequestContext, 'traceId' | 'parentSpan' | 'traceFlags'> {
    const { traceId, spanId, flags } = this.#attempt?.context ?? this.context;
    return { traceId, parentSpan: spanId, traceFlags: flags };
  }

  on(record: RequestRecord, event: RequestEvent, atMs: number): void {
    if (event.kind === 'placing') this.#placing(atMs);
    else if (event.kind === 'placed') this.#placed(event, atMs);
    else if (event.kind === 'firstToken' && event.isFirst) this.#firstTokenMs = atMs;
    else if (event.kind === 'attempt') this.#attemptEnded(event.outcome, atMs);
    else if (event.kind === 'ended') this.#end(record, atMs);
  }

  /** The first time the prompt has token ids, and its placement begins; later ones are placements after a lost attempt. */
  #placing(atMs: number): void {
    this.#part(this.#isTokenised ? 'retry' : 'tokenise', atMs);
    this.#isTokenised = true;
  }

  #placed({ decode, reason }: PlacedEvent, startMs: number): void {
    this.#part('place', startMs);
    const attributes = { 'penstock.instance': decode, 'penstock.reason': reason };
    this.#attempt = { context: this.#child(), startMs, attributes };
  }

  /** `outcome` is that of the request log: a failure's message, or one word. */
  #attemptEnded(outcome: string, endMs: number): void {
    if (!this.#attempt) return;
    const error = ['finished', 'stopped', 'cancelled'].includes(outcome) ? undefined : outcome;
    const { context, startMs, attributes } = this.#attempt;
    this.#attempt = undefined;
    this.#lastMs = endMs;
    const span = { context, parent: this.context.spanId, startMs, endMs, attributes, error };
    this.#tracing.record({ name: 'attempt', kind: 'client', ...span });
  }

  #end(record: RequestRecord, endMs: number): void {
    const { kind, facts, failure } = record;
    const { endpoint, operation } = kind;
    this.#attemptEnded('stopped', endMs);
    this.#tracing.record({
      name: operation === undefined ? endpoint : `${operation} ${facts.model ?? ''}`.trim(),
      kind: 'server',
      context: this.context,
      parent: this.#parent,
      startMs: this.#startMs,
      endMs,
      attributes: attributesOf(record),
      events: this.#firstTokenMs === undefined ? [] : [{ name: 'first token', atMs: this.#firstTokenMs }],
      error: failure === undefined ? undefined : messageOf(failure),
    });
  }

  #child(): SpanContext {
    const { traceId, flags } = this.context;
    return { traceId, flags, spanId: this.#tracing.newSpanId() };
  }

  /** Records the span from the end of the last one until `endMs`. */
  #part(name: string, endMs: number): void {
    const span = { context: this.#child(), parent: this.context.spanId, startMs: this.#lastMs, endMs, attributes: {} };
    this.#tracing.record({ name, kind: 'internal', ...span });
    this.#lastMs = endMs;
  }
}

/** Attributes by OpenTelemetry's conventions for generative AI, and by the names that vLLM's spans have where those have none. */
function attributesOf(record: RequestRecord): SpanAttributes {
  const { id, kind, facts, counts, finishReason, failure, ttftMs, totalMs, ttft } = record;
  const { outputTokens, tokens } = counts;
  const seconds = (ms: number | undefined): number | undefined => (ms === undefined ? undefined : ms / MS_PER_S);
  const decodeMs = ttftMs === undefined || totalMs === undefined ? undefined : totalMs - ttftMs;
  return {
    'gen_ai.operation.name': kind.operation,
    'gen_ai.provider.name': 'penstock',
    'gen_ai.response.id': id,
    'gen_ai.request.id': id,
    'gen_ai.usage.output_tokens': outputTokens,
    'gen_ai.usage.cache_read.input_tokens': tokens.cached + tokens.fetched,
    'gen_ai.usage.completion_tokens': outputTokens,
    'gen_ai.response.finish_reasons': finishReason === undefined ? undefined : [finishReason],
    'gen_ai.latency.time_to_first_token': seconds(ttftMs),
    'gen_ai.latency.e2e': seconds(totalMs),
    'gen_ai.latency.time_in_queue': seconds(ttft?.queue),
    'gen_ai.latency.time_in_model_decode': seconds(decodeMs),
    'http.route': kind.endpoint,
    'penstock.tokens.cached': tokens.cached,
    'penstock.tokens.fetched': tokens.fetched,
    'penstock.tokens.computed': tokens.computed,
    'error.type': failure === undefined ? undefined : ((failure as { code?: string }).code ?? 'internal'),
    ...factsAttributes(facts),
  };
}
