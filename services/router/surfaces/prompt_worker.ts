/** Entry of a thread that reads bodies and encodes their prompts. */
import type { TokenizerInput } from '../../../shared/text/tokenizer_tools.ts';
import { PromptTools } from '../api/prompt_tools.ts';
import { bodyKinds } from './registry.ts';

/** Entry point of a tokenizer thread. @throws Error when the tokenizer's files cannot be used */
export function start(input: TokenizerInput): PromptTools {
  return new PromptTools(input, bodyKinds);
}
