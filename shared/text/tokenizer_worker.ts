/** Entry of a tokenizer thread. Scripts that try a build look for its tools here. */
import { TokenizerTools, type TokenizerInput } from './tokenizer_tools.ts';

export { TokenizerTools } from './tokenizer_tools.ts';

/** Entry point of a tokenizer thread. @throws Error when the tokenizer's files cannot be used */
export function start(input: TokenizerInput): TokenizerTools {
  return new TokenizerTools(input);
}
