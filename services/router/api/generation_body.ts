/** Parameters of a body that asks for generated tokens, whatever API it is of. */
import type { CacheScope } from '../../../shared/kv/format.ts';
import type { Sampling } from '../../../shared/protocol/request.ts';
import type { TextRule } from '../../../shared/text/grammar/text_rule.ts';
import type { ParsedBody } from './body_kind.ts';
import type { Truncation } from './truncation.ts';

/** Constraints that a request states for its output. */
export interface ConstraintWish {
  readonly rule: TextRule | undefined;
  /** Ids of the only tokens that may be sampled; undefined: all tokens. */
  readonly allowedTokenIds: readonly number[] | undefined;
  readonly badWords: readonly string[];
}

/**
 * Sampling parameters that the client named; undefined is what it did not. The model's defaults and neutral values are added later
 * (new_generation.ts). A new field of the message does not compile until the API reads it.
 */
type SamplingWish = { readonly [F in keyof Sampling]: Sampling[F] | undefined } & Pick<
  Sampling,
  'numLogprobs' | 'minTokens' | 'biasTokens' | 'biasValues'
>;

/** Parsed parameters of a request for tokens. */
export interface GenerationBody extends ParsedBody {
  readonly isStream: boolean;
  readonly sampling: SamplingWish;
  /** Choices of the answer for each prompt (`n`). */
  readonly numChoices: number;
  /** Samples of each prompt, of which the best are the choices (`best_of`); at least `numChoices`. */
  readonly numSamples: number;
  readonly stops: readonly string[];
  readonly isStopIncluded: boolean;
  readonly stopTokenIds: readonly number[];
  /** New tokens at most; undefined means the endpoint's default. */
  readonly maxTokens: number | undefined;
  readonly isIgnoringEos: boolean;
  readonly isSkippingSpecial: boolean;
  /** Whether log-probabilities name tokens `token_id:N` (`return_tokens_as_token_ids`). */
  readonly isNamingIds: boolean;
  /** How a longer prompt is cut (`truncate_prompt_tokens`); undefined: it is refused. */
  readonly truncation: Truncation | undefined;
  /** Alternatives with each token of the prompt; -1: no log-probabilities of the prompt. */
  readonly numPromptLogprobs: number;
  /** Constraints of the output; undefined when there are none. */
  readonly constraint: ConstraintWish | undefined;
  readonly priority: number;
  /** Only requests of the same scope share blocks. */
  readonly cacheScope: CacheScope;
  /** Whether the answer repeats the prompt before the output (`echo`); left out: it does not. */
  readonly isEchoing?: boolean;
}
