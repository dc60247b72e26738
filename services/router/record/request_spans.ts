/**
 * Spans of one request at the router.
 *
 *   request  ├─ tokenise ─┼─ place ─┼─ attempt ──first token───────────┤
 *                                   └─ Prefill and Decode calls: spans of the instances, below the attempt
 *
 * A failover places again, with another attempt. The times are those of the request log.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { SpanAttributes, SpanContext, Tracing } from '../../../shared/base/tracing/tracing.ts';
import type { RequestContext } from '../../../shared/protocol/messages.ts';
import type { Request } from '../../../shared/protocol/request.ts';
import type { RequestKind } from './request_kind.ts';

/** Values of a request that has ended, for the attributes of its span. */
export interface EndedRequest {
  readonly id: string;
  readonly kind: RequestKind;
  readonly model: string | undefined;
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly finishReason: string | undefined;
  readonly failure: unknown;
  readonly ttftMs: number | undefined;
  readonly totalMs: number | undefined;
  readonly tokens: { readonly cached: number; readonly fetched: number; readonly computed: number };
  readonly ttft: { readonly queue: number } | undefined;
}

const MS_PER_S = 1_000;

/** Spans of one request: its own, and those of its tokenising, placements and attempts. */
export class RequestSpans {
  /** Span of the request. */
  readonly context: SpanContext;
  readonly #tracing: Tracing;
  readonly #clock: Clock;
  readonly #parent: string | undefined;
  readonly #startMs: number;
  /** End of the last span that was recorded. */
  #lastMs: number;
  #attempt:
    { readonly context: SpanContext; readonly startMs: number; readonly attributes: SpanAttributes } | undefined;
  #firstTokenMs: number | undefined;
  #sampling: SpanAttributes = {};
  #isTokenised = false;

  /** `parent` is the span of the client, or of the request that this is a part of. */
  constructor(tracing: Tracing, clock: Clock, parent: SpanContext | undefined) {
    this.#tracing = tracing;
    this.#clock = clock;
    this.context = tracing.begin(parent);
    this.#parent = parent?.spanId;
    this.#startMs = this.#lastMs = clock.nowMs();
  }

  /** Fields of the context of a call for the request: below the attempt that runs, else below the request itself. */
  get wire(): Pick<RequestContext, 'traceId' | 'parentSpan' | 'traceFlags'> {
    const { traceId, spanId, flags } = this.#attempt?.context ?? this.context;
    return { traceId, parentSpan: spanId, traceFlags: flags };
  }

  /** The prompt is read and has token ids, and its placement begins; later calls are placements after a lost attempt. */
  placing(sampling: SpanAttributes): void {
    this.#sampling = sampling;
    this.#part(this.#isTokenised ? 'retry' : 'tokenise');
    this.#isTokenised = true;
  }

  /** The request is placed, and an attempt at the instance `name` begins. */
  placed(name: string, reason: string): void {
    const startMs = this.#part('place');
    const attributes = { 'penstock.instance': name, 'penstock.reason': reason };
    this.#attempt = { context: this.#child(), startMs, attributes };
  }

  firstToken(): void {
    this.#firstTokenMs ??= this.#clock.nowMs();
  }

  /** The attempt has ended; `outcome` is that of the request log: a failure's message, or one word. */
  attemptEnded(outcome: string): void {
    if (!this.#attempt) return;
    const error = ['finished', 'stopped', 'cancelled'].includes(outcome) ? undefined : outcome;
    const { context, startMs, attributes } = this.#attempt;
    this.#attempt = undefined;
    this.#lastMs = this.#clock.nowMs();
    const span = { context, parent: this.context.spanId, startMs, endMs: this.#lastMs, attributes, error };
    this.#tracing.record({ name: 'attempt', kind: 'client', ...span });
  }

  end(request: EndedRequest): void {
    const { kind, model, failure } = request;
    const { endpoint, operation } = kind;
    const endMs = this.#clock.nowMs();
    this.attemptEnded('stopped');
    this.#tracing.record({
      name: operation === undefined ? endpoint : `${operation} ${model ?? ''}`.trim(),
      kind: 'server',
      context: this.context,
      parent: this.#parent,
      startMs: this.#startMs,
      endMs,
      attributes: { ...attributesOf(request), ...this.#sampling },
      events: this.#firstTokenMs === undefined ? [] : [{ name: 'first token', atMs: this.#firstTokenMs }],
      error: failure === undefined ? undefined : messageOf(failure),
    });
  }

  #child(): SpanContext {
    const { traceId, flags } = this.context;
    return { traceId, flags, spanId: this.#tracing.newSpanId() };
  }

  /** Records the span from the end of the last one until now. @returns the time now */
  #part(name: string): number {
    const endMs = this.#clock.nowMs();
    const span = { context: this.#child(), parent: this.context.spanId, startMs: this.#lastMs, endMs, attributes: {} };
    this.#tracing.record({ name, kind: 'internal', ...span });
    this.#lastMs = endMs;
    return endMs;
  }
}

/** Attributes by OpenTelemetry's conventions for generative AI, and by the names that vLLM's spans have where those have none. */
function attributesOf(request: EndedRequest): SpanAttributes {
  const { id, kind, model, promptTokens, outputTokens, finishReason, failure } = request;
  const { ttftMs, totalMs, tokens, ttft } = request;
  const seconds = (ms: number | undefined): number | undefined => (ms === undefined ? undefined : ms / MS_PER_S);
  const decodeMs = ttftMs === undefined || totalMs === undefined ? undefined : totalMs - ttftMs;
  return {
    'gen_ai.operation.name': kind.operation,
    'gen_ai.provider.name': 'penstock',
    'gen_ai.request.model': model,
    'gen_ai.response.model': model,
    'gen_ai.response.id': id,
    'gen_ai.request.id': id,
    'gen_ai.usage.input_tokens': promptTokens,
    'gen_ai.usage.output_tokens': outputTokens,
    'gen_ai.usage.cache_read.input_tokens': tokens.cached + tokens.fetched,
    'gen_ai.usage.prompt_tokens': promptTokens,
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
  };
}

/** Returns how many tokens a request asks for, and how they are chosen, as attributes of a request's span. */
export function samplingAttributes({ sampling, promptLength, maxLength }: Request): SpanAttributes {
  const { temperature, topP, topK } = sampling;
  return {
    'gen_ai.request.max_tokens': maxLength - promptLength,
    'gen_ai.request.temperature': temperature,
    'gen_ai.request.top_p': topP,
    ...(topK > 0 ? { 'gen_ai.request.top_k': topK } : {}),
  };
}
