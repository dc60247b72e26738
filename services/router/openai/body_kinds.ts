/** Body readers by endpoint. */
import { readCountBody, readMessagesBody } from '../anthropic/message_parameters.ts';
import { parseJson } from './body_parts.ts';
import { readEmbeddingBody } from './embedding_parameters.ts';
import {
  readChatBody,
  readCompletionBody,
  readDetokenizeBody,
  readTokenizeBody,
  type ChatBody,
  type CompletionBody,
} from './parameters.ts';
import { readResponseBody } from '../responses/response_parameters.ts';
import { ParameterFailure, type BodyLimits } from './parameter_failure.ts';

/** Reads a body with `messages` as a chat, one with `prompt` as a completion. @throws ParameterFailure for one that has neither. */
function readInvocationBody(bytes: Uint8Array, limits: BodyLimits): ChatBody | CompletionBody {
  const { messages, prompt } = parseJson(bytes);
  if ((messages ?? null) !== null) return readChatBody(bytes, limits);
  if ((prompt ?? null) !== null) return readCompletionBody(bytes, limits);
  throw new ParameterFailure('the body has neither messages, for a chat, nor prompt, for a completion', null);
}

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

const readers = {
  chat: readChatBody,
  completion: readCompletionBody,
  embedding: readEmbeddingBody,
  invocation: readInvocationBody,
  response: readResponseBody,
  message: readMessagesBody,
  messageCount: readCountBody,
  lookup: readLookupBody,
  tokenize: readTokenizeBody,
  detokenize: readDetokenizeBody,
} as const;

/** Endpoint whose body can be read. */
export type BodyKind = keyof typeof readers;
/** Parsed body of an endpoint. */
export type BodyOf<K extends BodyKind> = ReturnType<(typeof readers)[K]>;

/** Parses and validates a request body. @throws ParameterFailure naming the refused parameter. */
export function readBody<K extends BodyKind>(kind: K, bytes: Uint8Array, limits: BodyLimits): BodyOf<K> {
  return readers[kind](bytes, limits) as BodyOf<K>;
}
