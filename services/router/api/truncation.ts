/** Cuts prompts to a number of tokens (`truncate_prompt_tokens` of vLLM), before they are generations. */
import type { CutSide } from '../../../shared/text/prompts.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** How prompts of a request are cut. */
export interface Truncation {
  /** Most tokens of a prompt; -1: as many as fit the context besides the output. */
  readonly numTokens: number;
  /** Side on which tokens are dropped: `left` keeps the last ones of the prompt. */
  readonly side: CutSide;
}

/** Lengths in tokens that a prompt must fit. */
interface Room {
  /** Longest prompt and output together. */
  readonly maxModelLen: number;
  /** Output tokens that the request asks for; undefined: as many as fit. */
  readonly maxTokens: number | undefined;
  /** Output tokens that a prompt which is cut to the context leaves room for, when the request names no number. */
  readonly usualTokens: number;
}

/**
 * Returns a prompt with at most the tokens that its request allows. @throws ParameterFailure when it allows more than the context has
 * room for.
 */
export function truncated(
  promptTokens: Uint32Array,
  truncation: Truncation | undefined,
  { maxModelLen, maxTokens, usualTokens }: Room,
): Uint32Array {
  if (!truncation) return promptTokens;
  const { numTokens, side } = truncation;
  const mostTokens = maxModelLen - Math.max(1, maxTokens ?? 1);
  // A context without any room for the prompt is refused by its own name, later.
  if (mostTokens > 0 && numTokens > mostTokens) {
    throw new ParameterFailure(
      `truncate_prompt_tokens: ${numTokens} is more than the ${mostTokens} tokens that a context of ${maxModelLen} leaves for the prompt; ask for fewer, or set it to -1`,
      'truncate_prompt_tokens',
    );
  }
  const numKept = numTokens === -1 ? Math.max(1, maxModelLen - Math.max(1, maxTokens ?? usualTokens)) : numTokens;
  return side === 'left' ? promptTokens.slice(-numKept) : promptTokens.slice(0, numKept);
}
