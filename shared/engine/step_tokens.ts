/** Tokens of a step, as vLLM counts an iteration: those of prompts that it computes, and those that it samples. */
import type { StepRows } from './step.ts';

/** Returns the number of prompt tokens that the rows compute, plus the tokens that they sample. Rows that repeat sampled tokens count as none. */
export function tokensOf(steps: readonly Pick<StepRows, 'sequence' | 'start' | 'count' | 'sampled'>[]): number {
  let numTokens = 0;
  for (const { sequence, start, count, sampled } of steps) {
    const end = Math.min(start + count, sequence.request.tokens.length);
    numTokens += Math.max(0, end - start) + sampled.length;
  }
  return numTokens;
}
