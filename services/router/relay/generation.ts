/** One prompt of a request with its parameters, for relay, placement and text. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Request } from '../../../shared/protocol/request.ts';
import type { SampleGroup } from './sample_group.ts';
import type { TextStreamOptions } from '../../../shared/text/text_stream.ts';

/**
 * The owner of a request and how it is served, sent to every instance that works on it. The tenant is empty where a router has only one; of
 * the priorities of a tenant the lower is served first where requests wait for full instances (busy_order.ts), and in the queue of an
 * instance (shared/engine/queue_order.ts).
 */
export interface Origin {
  readonly tenant: string;
  readonly priority: number;
  /** Address of the client where no tenant is known: clients share as tenants do then. */
  readonly client?: string;
  /** Weight of the tenant's share; 1 by default. */
  readonly weight?: number;
  /** Levels by which the request goes before those of other tenants; 0 by default. */
  readonly precedence?: number;
}

/** One prompt with its parameters, in the form that relay, placement and text need. */
export interface Generation {
  readonly origin: Origin;
  readonly promptTokens: Uint32Array;
  /** Whether the client sent the prompt as token ids; false where it is left out. */
  readonly isFromIds?: boolean | undefined;
  readonly request: Request;
  /**
   * Whether only the prompt is wanted (`max_tokens` 0). One token is still generated, as the sign that the prompt is complete, and
   * dropped.
   */
  readonly isPromptOnly: boolean;
  /** Whether the request named no limit: the output may fill the context of the instance where it runs. */
  readonly isOpenEnded: boolean;
  /** Stop tokens that the answer names as `stop_reason`: the client's own, and the model's end tokens except the first. */
  readonly ownStopTokenIds: readonly number[];
  /** Stop texts that are special tokens, by id. Texts leave these tokens out, so that they end the output by their ids too. */
  readonly stopTexts: ReadonlyMap<number, string>;
  readonly text: TextStreamOptions;
  /**
   * Log-probabilities of the prompt's tokens from the second on, complete before the first output token, also after a failover;
   * undefined when not requested.
   */
  readonly promptLogprobs: SampledMessage[] | undefined;
  /** The samples of the prompt, this one included; undefined when there is only one. */
  readonly group?: SampleGroup | undefined;
}
