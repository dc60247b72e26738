/** Entry of a thread that is a tokenizer and reads no bodies (the router's threads also do: surfaces/prompt_worker.ts). Scripts that try a build look for its tools here. */
import { TokenizerTools, type TokenizerInput } from './tokenizer_tools.ts';

export { TokenizerTools } from './tokenizer_tools.ts';

/** Entry point of a tokenizer thread. @throws Error when the tokenizer's files cannot be used */
export function start(input: TokenizerInput): TokenizerTools {
  return new TokenizerTools(input);
}
