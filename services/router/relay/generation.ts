/** One prompt as it was asked for: what relay, placement and text need of it, each what it needs. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Request } from '../../../shared/protocol/request.ts';
import type { RequestCounts } from './request_counts.ts';
import type { TextStreamOptions } from '../text/text_stream.ts';

/**
 * Tenant and priority of a request, sent to every instance that works on it. Both are reserved: the tenant is always empty, the
 * priority 0.
 */
interface Origin {
  readonly tenant: string;
  readonly priority: number;
}

/** One prompt with its parameters, in the form that relay, placement and text need. */
export interface Generation {
  /** Counted by its attempts, for the usage of its answer. */
  readonly counts: RequestCounts;
  readonly origin: Origin;
  readonly promptTokens: Uint32Array;
  readonly request: Request;
  /**
   * Whether only the prompt is wanted (`max_tokens` 0). One token is still generated, as the sign that the prompt is complete, and
   * dropped.
   */
  readonly isPromptOnly: boolean;
  /** The request named no limit: as much as fits where it runs. */
  readonly isOpenEnded: boolean;
  /** Stop tokens that the client named itself: it is told which one ended the output. */
  readonly ownStopTokenIds: readonly number[];
  readonly text: TextStreamOptions;
  /**
   * The prompt's tokens from the second on, where the request asks for their log-probabilities: filled before the first token of the
   * output, whatever fails on the way. Undefined: they are not asked for.
   */
  readonly promptLogprobs: SampledMessage[] | undefined;
}
