/**
 * `/tokenize`, `/detokenize` and `/apply-template`. All count as requests in flight, and work for a client that has left is not started. Lists are sent
 * as the JSON text that the tokenizer's thread wrote.
 */
import { detokenizeKind, tokenizeKind } from './body_kinds.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { ignoredHeaders } from './common.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { RequestScope } from '../../api/request_scope.ts';

/** Answers `/tokenize`: token count, ids and, on request, token strings. @throws Failure when the body is refused or the client left. */
export async function tokenize(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/tokenize');
  const body = await all.bodies.read(tokenizeKind, scope.body, scope.signal);
  const context = all.of(body.model);
  trace.model = context.servedName;
  const { count, tokens, strings } = await context.codec.tokenize(body, scope.signal);
  context.requests.close(trace, 'finished', 'stop');
  scope.answer(
    `{"count":${count},"max_model_len":${context.maxModelLen()},"tokens":${tokens},"token_strs":${strings}}`,
    ignoredHeaders(body.ignored),
  );
}

/**
 * Answers `/apply-template` (llama.cpp): the text of a chat's prompt, as `/v1/chat/completions` encodes it. @throws Failure when the body
 * or the template refuses the messages.
 */
export async function applyTemplate(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/apply-template');
  const { model, template, ignored } = await all.bodies.read(tokenizeKind, scope.body, scope.signal);
  const context = all.of(model);
  trace.model = context.servedName;
  if (!template) throw new ParameterFailure('messages: a list of at least one message', 'messages');
  const prompt = await context.codec.render(template, scope.signal);
  context.requests.close(trace, 'finished', 'stop');
  scope.answer(JSON.stringify({ prompt }), ignoredHeaders(ignored));
}

/** Answers `/detokenize`. @throws ParameterFailure when the model has no tokenizer or a token id is invalid. */
export async function detokenize(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/detokenize');
  const body = await all.bodies.read(detokenizeKind, scope.body, scope.signal);
  const context = all.of(body.model);
  trace.model = context.servedName;
  if (!context.codec.hasTokenizer) throw new ParameterFailure('tokens: this model has no tokenizer', 'tokens');
  const prompt = await context.codec.detokenize(body.tokens, scope.signal);
  context.requests.close(trace, 'finished', 'stop');
  scope.answer(JSON.stringify({ prompt }), ignoredHeaders(body.ignored));
}
