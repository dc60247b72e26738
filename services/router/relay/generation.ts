/** One prompt as it was asked for: what relay, placement and text need of it, each what it needs. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Request } from '../../../shared/protocol/request.ts';
import type { RequestCounts } from './request_counts.ts';
import type { TextStreamOptions } from '../text/text_stream.ts';

/** Whose request it is, and how it ranks among others: placement and tenants will ask; said to every instance that works for it. */
interface Origin {
  readonly tenant: string;
  readonly priority: number;
}

export interface Generation {
  /** Counted by its attempts, for the usage of its answer. */
  readonly counts: RequestCounts;
  readonly origin: Origin;
  readonly promptTokens: Uint32Array;
  readonly request: Request;
  /** Nothing is to come but the prompt: the one token that tells that it is there is nobody's. */
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
