/** Kind of the bodies of look-ups. */
import type { PromptBodyKind } from '../../api/body_kind.ts';
import { parseJson } from '../../api/body_parts.ts';
import { ParameterFailure, type BodyLimits } from '../../api/parameter_failure.ts';
import { anyPrompts, readInvocationBody } from '../openai/body_kinds.ts';
import { readCompletionBody, type ChatBody, type CompletionBody } from '../openai/parameters.ts';

/**
 * Reads the body of a look-up, which is that of a chat or of a completion, or has the token ids of a prompt as `tokens`. @throws
 * ParameterFailure for a body with none of them, or with several.
 */
function readLookupBody(bytes: Uint8Array, limits: BodyLimits): ChatBody | CompletionBody {
  const { messages, prompt, tokens, ...others } = parseJson(bytes);
  const isGiven = (value: unknown): boolean => (value ?? null) !== null;
  if ([messages, prompt, tokens].filter(isGiven).length !== 1)
    throw new ParameterFailure(
      'send one of messages (a chat), prompt (a text or token ids) and tokens (token ids)',
      null,
    );
  if (!isGiven(tokens)) return readInvocationBody(bytes, limits);
  if (!Array.isArray(tokens) && !(tokens instanceof Uint32Array))
    throw new ParameterFailure('tokens: a list of token ids', 'tokens');
  const ids = Array.from(tokens as ArrayLike<unknown>);
  return readCompletionBody(Buffer.from(JSON.stringify({ ...others, prompt: ids })), limits);
}

/** Body of a look-up. */
export const lookupKind: PromptBodyKind<ChatBody | CompletionBody> = {
  name: 'lookup',
  fields: ['messages', 'prompt'],
  read: readLookupBody,
  prompts: anyPrompts,
};
