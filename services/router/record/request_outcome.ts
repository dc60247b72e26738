/** How one HTTP request ended, for whoever counts and logs HTTP requests: those who serve it fill it in, and it is read at the end. */
import type { Caller } from '../access/caller.ts';
import type { RequestRecord } from './request_record.ts';

/** Parts of an HTTP request that are known below HTTP. */
export class RequestOutcome {
  /** Records of its prompts and their samples, whose number its endpoint bounds (P1); empty where it was refused before it had one. */
  readonly records: RequestRecord[] = [];
  /** Error that its client was sent; undefined where there was none. */
  failure: unknown;
  /** Resolves when nothing of the request is left, for one that an endpoint serves. */
  served: Promise<void> | undefined;
}

/** An HTTP request that has ended. */
export interface EndedRequest extends Pick<RequestOutcome, 'records' | 'failure'> {
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
  readonly durationMs: number;
  readonly method: string;
  /** Path with the names of its parameters in braces; `none` for one that the server does not have. */
  readonly route: string;
  /** Whether the route is for clients, not for those who look at the cluster. */
  readonly isForClients: boolean;
  /** 499 where the client left before the end of its answer. */
  readonly status: number;
  /** Address of the client. */
  readonly address: string | undefined;
  /** Who sent it; undefined where no key was known, or none was looked for. */
  readonly caller: Caller | undefined;
}

/** Is told of the end of a request. */
export type OnRequestEnd = (ended: EndedRequest) => void;
