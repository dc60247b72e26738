/** Kinds of bodies of OpenAI's endpoints, and the prompts of a chat or of texts in any form. */
import { scopeNumber } from '../../../../shared/kv/format.ts';
import type { BodyKind, BodyPrompts, ParsedBody, PromptBodyKind } from '../../api/body_kind.ts';
import { parseJson } from '../../api/body_parts.ts';
import { ParameterFailure, type BodyLimits } from '../../api/parameter_failure.ts';
import { readEmbeddingBody, type EmbeddingBody } from './embedding_parameters.ts';
import {
  readChatBody,
  readCompletionBody,
  readDetokenizeBody,
  readTokenizeBody,
  type ChatBody,
  type CompletionBody,
  type DetokenizeBody,
  type TokenizeBody,
} from './parameters.ts';

const NO_IDS = new Uint32Array(0);

/** Returns the prompt of a chat. */
export function chatPrompts<B extends ChatBody>(body: B): BodyPrompts<B> {
  const { template, truncation, cacheScope } = body;
  return {
    source: { template },
    cutSide: truncation?.side,
    answerScope: scopeNumber(cacheScope),
    isEchoing: false,
    withoutText: () => ({ ...body, template: { ...template, messages: [], kwargs: {}, tools: [] } }),
  };
}

type Texts = ParsedBody & Pick<CompletionBody, 'prompts' | 'hasSpecialTokens'>;

function textPrompts<B extends Texts>(
  body: B,
  limits: Pick<BodyPrompts, 'cutSide' | 'answerScope' | 'isEchoing'>,
): BodyPrompts<B> {
  return {
    ...limits,
    source: { texts: body.prompts, addSpecialTokens: body.hasSpecialTokens },
    withoutText: () => ({
      ...body,
      prompts: body.prompts.map((prompt) => (typeof prompt === 'string' ? '' : NO_IDS)),
    }),
  };
}

function completionPrompts(body: CompletionBody): BodyPrompts<CompletionBody> {
  const { truncation, cacheScope, isEchoing } = body;
  return textPrompts(body, { cutSide: truncation?.side, answerScope: scopeNumber(cacheScope), isEchoing });
}

/** Returns the prompts of a chat or a completion. */
export function anyPrompts(body: ChatBody | CompletionBody): BodyPrompts<ChatBody | CompletionBody> {
  return 'template' in body ? chatPrompts(body) : completionPrompts(body);
}

/** Reads a body with `messages` as a chat, one with `prompt` as a completion. @throws ParameterFailure for one that has neither. */
export function readInvocationBody(bytes: Uint8Array, limits: BodyLimits): ChatBody | CompletionBody {
  const { messages, prompt } = parseJson(bytes);
  if ((messages ?? null) !== null) return readChatBody(bytes, limits);
  if ((prompt ?? null) !== null) return readCompletionBody(bytes, limits);
  throw new ParameterFailure('the body has neither messages, for a chat, nor prompt, for a completion', null);
}

/** Body of a chat. */
export const chatKind: PromptBodyKind<ChatBody> = {
  name: 'chat',
  fields: ['messages'],
  read: readChatBody,
  prompts: chatPrompts,
};

/** Body of a completion. */
export const completionKind: PromptBodyKind<CompletionBody> = {
  name: 'completion',
  fields: ['prompt'],
  read: readCompletionBody,
  prompts: completionPrompts,
  idsField: 'prompt',
};

/** Body of either, by what it has. */
export const invocationKind: PromptBodyKind<ChatBody | CompletionBody> = {
  name: 'invocation',
  fields: ['messages', 'prompt'],
  read: readInvocationBody,
  prompts: anyPrompts,
  idsField: 'prompt',
};

/** Body of a request for embeddings: each is one of its text alone. */
export const embeddingKind: PromptBodyKind<EmbeddingBody> = {
  name: 'embedding',
  fields: ['input'],
  read: readEmbeddingBody,
  prompts: (body) => textPrompts(body, { cutSide: undefined, answerScope: undefined, isEchoing: false }),
  idsField: 'input',
};

/** Body of a text or chat to tokenize. */
export const tokenizeKind: BodyKind<TokenizeBody> = {
  name: 'tokenize',
  fields: ['prompt', 'messages'],
  read: readTokenizeBody,
};

/** Body of token ids. */
export const detokenizeKind: BodyKind<DetokenizeBody> = {
  name: 'detokenize',
  fields: ['tokens'],
  read: readDetokenizeBody,
};
