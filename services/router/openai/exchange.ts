/**
 * One request and its answer as the API sees them: bytes in, a sink out. Who brings the one and takes the other is a driver: HTTP, or
 * a test.
 */
import type { Body } from './bodies.ts';

/** The client's own ids of its request; undefined where the client sent none. */
export interface RequestNames {
  readonly clientId: string | undefined;
  readonly traceId: string | undefined;
}

/** Destination of an answer: an HTTP response, or a test. Status and headers are sent with the first bytes. */
export interface Sink {
  /** Something has left: what begins the answer is said. */
  readonly hasBegun: boolean;
  begin(status: number, headers: Readonly<Record<string, string>>): void;
  /** False: the reader is behind, and nothing more is written before it has {@link drained}. */
  write(text: string): boolean;
  /** The whole answer, or the last of it. */
  end(text: string): void;
  /** Resolves when there is room again, nobody reads any more, or `signal` aborts. */
  drained(signal: AbortSignal): Promise<void>;
  /** Still behind. */
  readonly isBehind: boolean;
  /** The reader is cut off. */
  destroy(): void;
}

/** One request and the sink for its answer. */
export interface Exchange {
  readonly names: RequestNames;
  /** The request body; empty once read. */
  readonly body: Body;
  /** Aborts when nobody is there to answer any more. */
  readonly gone: AbortSignal;
  readonly sink: Sink;
}
