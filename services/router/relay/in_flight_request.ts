/** One request on its way through its attempts. */
import type { TokenList } from '../../../shared/base/token_list.ts';
import type { Generation } from './generation.ts';
import type { RewrittenPrefix } from './recent_sequences.ts';
import type { RequestChain } from './request_chain.ts';
import type { RetryState } from './retry.ts';

/** State of one request across its attempts. */
export interface InFlightRequest extends RetryState {
  readonly generation: Generation;
  /** The prompt and the output so far. */
  readonly tokens: TokenList;
  readonly chain: RequestChain;
  numAttempts: number;
  /** Streams of instances that were ended because of replies to this request. */
  numRefused: number;
  /** Numerics class of the instance that generated the last token; undefined before the first one. */
  numericsClass?: string;
  /** Where the prompt departs from the recent sequence that it continues; undefined when it continues none, or one as it was. */
  rewritten?: RewrittenPrefix;
}
