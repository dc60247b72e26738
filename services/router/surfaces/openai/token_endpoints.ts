/**
 * `/tokenize`, `/detokenize` and `/apply-template`. All count as requests in flight, and work for a client that has left is not started. Lists are sent
 * as the JSON text that the tokenizer's thread wrote.
 */
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { Surface } from '../../api/surface.ts';
import { detokenizeKind, tokenizeKind } from './body_kinds.ts';
import { openaiErrors } from './errors.ts';
import { detokenizeSchema, tokenizeSchema } from './parameter_schemas.ts';
import type { DetokenizeBody, TokenizeBody } from './parameters.ts';

/** `/tokenize`: token count, ids and, on request, token strings. */
export const tokenizeSurface: Surface<TokenizeBody> = {
  paths: ['/tokenize'],
  kind: tokenizeKind,
  counts: 'none',
  errors: openaiErrors,
  describe: {
    summary: 'Encodes a text, or a chat as it is encoded for an answer',
    schemas: { Tokenize: tokenizeSchema },
  },
  async answer({ context, body, scope }) {
    const { count, tokens, strings } = await context.codec.tokenize(body, scope);
    return `{"count":${count},"max_model_len":${context.maxModelLen()},"tokens":${tokens},"token_strs":${strings}}`;
  },
};

/** `/apply-template` (llama.cpp): the text of a chat's prompt, as `/v1/chat/completions` encodes it. */
export const templateSurface: Surface<TokenizeBody> = {
  paths: ['/apply-template'],
  kind: tokenizeKind,
  counts: 'none',
  errors: openaiErrors,
  describe: { summary: "Renders a chat's prompt as text", schemas: { Tokenize: tokenizeSchema } },
  async answer({ context, body: { template }, scope }) {
    if (!template) throw new ParameterFailure('messages: a list of at least one message', 'messages');
    return JSON.stringify({ prompt: await context.codec.render(template, scope) });
  },
};

/** `/detokenize`: the text of token ids. */
export const detokenizeSurface: Surface<DetokenizeBody> = {
  paths: ['/detokenize'],
  kind: detokenizeKind,
  counts: 'none',
  errors: openaiErrors,
  describe: { summary: 'Decodes token ids', schemas: { Detokenize: detokenizeSchema } },
  async answer({ context, body: { tokens }, scope }) {
    if (!context.codec.hasTokenizer) throw new ParameterFailure('tokens: this model has no tokenizer', 'tokens');
    return JSON.stringify({ prompt: await context.codec.detokenize(tokens, scope) });
  },
};
