/** One prompt as it was asked for: what relay, placement and text need of it, each what it needs. */
import type { Scope } from '../../../shared/kv/format.ts';
import type { SampledMessage, SamplingMessage } from '../../../shared/protocol/messages.ts';
import type { TextStreamOptions } from '../text/text_stream.ts';

export interface Generation {
  readonly promptTokens: Uint32Array;
  /** Prompt and output together, at most. */
  readonly maxLength: number;
  /** Nothing is to come but the prompt: the one token that tells that it is there is nobody's. */
  readonly isPromptOnly: boolean;
  /** The request named no limit: as much as fits where it runs. */
  readonly isOpenEnded: boolean;
  readonly sampling: SamplingMessage;
  /** Requests of different scopes share no blocks. */
  readonly scope: Scope;
  /** Tokens that end the output: those of the model and those of the request. */
  readonly stopTokenIds: readonly number[];
  /** Those of the request alone: it is told which one ended it. */
  readonly ownStopTokenIds: readonly number[];
  readonly text: TextStreamOptions;
  /** Undefined: they are not asked for. */
  readonly promptLogprobs: PromptLogprobs | undefined;
}

/** Of the prompt's tokens: filled before the first token of the output, whatever fails on the way. */
interface PromptLogprobs {
  /** Alternatives. */
  readonly numTop: number;
  /** From the second token on: the first has none. */
  readonly tokens: SampledMessage[];
}
