/**
 * Spans of traces. A span is recorded when it has ended, with times of the clock of the process that measured it; its id is drawn when it
 * begins, because calls to other processes carry that id. Without tracing there is no {@link Tracing}, and nothing is drawn or kept.
 */

/** Span of a trace, as calls and the header `traceparent` carry it. */
export interface SpanContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits. */
  readonly spanId: string;
  /** Flags of `traceparent`: bit 0 says that the trace is recorded. */
  readonly flags: number;
}

/** Values that describe a span; never text or token ids of a prompt. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

/** A span that has ended. */
export interface Span {
  readonly name: string;
  /** `server`: the work for a call; `client`: a call as its caller sees it; `internal`: a part of either. */
  readonly kind: 'server' | 'client' | 'internal';
  readonly context: SpanContext;
  /** Id of the span above; undefined for the first span of a trace. */
  readonly parent: string | undefined;
  /** Milliseconds on the monotonic clock of this process. */
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: SpanAttributes;
  readonly events?: readonly { readonly name: string; readonly atMs: number }[] | undefined;
  /** Message of the error that ended the work; undefined where there was none. */
  readonly error?: string | undefined;
}

/** Destination of spans. */
export interface Tracing {
  /** Returns the id of a new span. */
  newSpanId(): string;
  /**
   * Returns the context of a span below `parent`: recorded if `parent` is. Without a parent it begins a trace, which is recorded by
   * chance, as --trace-ratio says.
   */
  begin(parent: SpanContext | undefined): SpanContext;
  /** Keeps a span until it is sent. Spans of traces that are not recorded are dropped. */
  record(span: Span): void;
  /** Sends what is left; resolves when it is sent, or after some seconds. */
  close(): Promise<void>;
}

const SAMPLED = 1;

/** Whether the spans of a trace are recorded. */
export function isRecorded({ flags }: Pick<SpanContext, 'flags'>): boolean {
  return (flags & SAMPLED) !== 0;
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;

/** Reads the header `traceparent` (W3C Trace Context). Returns undefined where it is absent or not allowed. */
export function readTraceparent(text: string | readonly string[] | undefined): SpanContext | undefined {
  const [, version, traceId = '', spanId = '', flags = '', more] = TRACEPARENT.exec(String(text ?? '')) ?? [];
  // Version 00 has four fields, ff is none; ids of zeros are invalid.
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return undefined;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  return { traceId, spanId, flags: Number.parseInt(flags, 16) };
}

/**
 * Returns a function that says whether a trace is recorded: a fraction `ratio` of all, by the trace's id, so that processes with equal
 * ratios agree.
 */
export function sampler(ratio: number): (traceId: string) => boolean {
  // The last digits are the random ones of ids that begin with a time.
  return (traceId) => Number.parseInt(traceId.slice(-8), 16) < ratio * 2 ** 32;
}
