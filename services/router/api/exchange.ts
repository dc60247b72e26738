/** One request and its answer as the API sees them: a body and a sink. The driver under them is HTTP, or a test. */
import type { SpanContext } from '../../../shared/base/tracing/tracing.ts';
import type { Body } from './bodies.ts';
import type { Caller } from '../access/caller.ts';
import type { Allowance } from '../conductor/tenant_limits.ts';
import type { RequestOutcome } from '../record/request_outcome.ts';

/** The client's own ids of its request; undefined where the client sent none. */
export interface RequestNames {
  readonly clientId: string | undefined;
  readonly traceId: string | undefined;
  /** Address from which the client calls; undefined where it is not known. */
  readonly address?: string | undefined;
  /** Span of the client, from its `traceparent`. */
  readonly parent?: SpanContext | undefined;
}

/** Targets in the headers of a request, as the client sent them; undefined where it sent none. */
export interface TargetTexts {
  readonly ttftMs?: string | undefined;
  readonly tbtMs?: string | undefined;
  readonly totalMs?: string | undefined;
}

/** Destination of an answer: an HTTP response, or a test. Status and headers are sent with the first bytes. */
export interface Sink {
  /** Whether status and headers have been sent. */
  readonly hasBegun: boolean;
  /** Sends status and headers; call once. */
  begin(status: number, headers: Readonly<Record<string, string>>): void;
  /** Writes text. Returns false when the reader is behind: nothing more is written before it has {@link drained}. */
  write(text: string): boolean;
  /** Ends the answer with the whole of it, or the last of it. */
  end(text: string): void;
  /** Resolves when there is room again, nobody reads any more, or `signal` aborts. */
  drained(signal: AbortSignal): Promise<void>;
  /** Whether the reader is behind now. */
  readonly isBehind: boolean;
  /** Closes the connection to the reader at once. */
  destroy(): void;
}

/** One request and the sink for its answer. */
export interface Exchange {
  readonly caller: Caller;
  /** Let in by the limits of the caller's tenant, and ended with the request; undefined without limits. */
  readonly allowance?: Allowance | undefined;
  readonly names: RequestNames;
  readonly targets?: TargetTexts | undefined;
  /** The request body; empty once read. */
  readonly body: Body;
  /** Aborts when the client is gone. */
  readonly gone: AbortSignal;
  readonly sink: Sink;
  /** Takes what becomes of the request; undefined where nobody counts it. */
  readonly outcome?: RequestOutcome | undefined;
}
