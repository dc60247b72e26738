/** One request on its way through its attempts. */
import type { Backoff } from '../../../shared/base/backoff.ts';
import type { Failure } from '../../../shared/base/failure.ts';
import type { TokenList } from '../../../shared/base/token_list.ts';
import type { Exclusions } from './exclusions.ts';
import type { Generation } from './generation.ts';
import type { RequestChain } from './request_chain.ts';
import type { RequestTrace } from './request_log.ts';

/** State of one request across its attempts. */
export interface InFlightRequest {
  readonly generation: Generation;
  readonly trace: RequestTrace;
  /** The prompt and the output so far. */
  readonly tokens: TokenList;
  readonly chain: RequestChain;
  /** Instances that failed or were busy, and holders that did not deliver. */
  readonly excluded: Exclusions;
  readonly untilMs: number;
  readonly signal: AbortSignal;
  last: Failure | undefined;
  /** Pauses after attempts that found the instance busy; grows with each and resets after progress. */
  readonly backoff: Backoff;
  numAttempts: number;
}
