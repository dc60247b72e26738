/** The API's endpoints: one function per path, each with its own RequestScope. Every error is sent in the form of the path's API. */
import { countTokens, messages } from '../anthropic/messages.ts';
import type { ApiContext } from './api_context.ts';
import { chat } from './chat.ts';
import { completions } from './completions.ts';
import { embeddings } from './embeddings.ts';
import { errorFormOf } from './error_form.ts';
import { errorStatus } from './errors.ts';
import type { Exchange } from './exchange.ts';
import { invocations } from './invocations.ts';
import { responses } from '../responses/responses.ts';
import { RequestScope } from './request_scope.ts';
import { applyTemplate, detokenize, tokenize } from './token_endpoints.ts';

/** Writes the answer to the scope's sink, or throws the error that the client is sent. */
type Endpoint = (context: ApiContext, scope: RequestScope) => Promise<void>;

const endpoints = {
  '/v1/chat/completions': chat,
  '/v1/completions': completions,
  '/v1/embeddings': embeddings,
  '/v1/responses': responses,
  '/v1/messages': messages,
  '/v1/messages/count_tokens': countTokens,
  // llama.cpp's names for them.
  '/chat/completions': chat,
  '/completions': completions,
  '/invocations': invocations,
  '/tokenize': tokenize,
  '/detokenize': detokenize,
  '/apply-template': applyTemplate,
} as const satisfies Record<string, Endpoint>;

/** Path of an endpoint. */
export type EndpointPath = keyof typeof endpoints;
/** Paths of all endpoints. */
export const endpointPaths = Object.keys(endpoints) as EndpointPath[];

/** Resolves when the request has ended and nothing of it is left; never rejects. */
export async function serve(context: ApiContext, path: EndpointPath, exchange: Exchange): Promise<void> {
  const scope = new RequestScope(context, exchange);
  const { sink } = exchange;
  let failure: unknown;
  try {
    await endpoints[path](context, scope);
  } catch (error) {
    failure = scope.reason(error);
    if (scope.isGone) return;
    context.metrics.failed(failure);
    const form = errorFormOf(path);
    // An error after the first event is sent as an event of its own, and ends the stream.
    if (sink.hasBegun) sink.end(form.event(failure, scope.requestId));
    else {
      sink.begin(errorStatus(failure), form.headers(failure, scope.requestId));
      sink.end(JSON.stringify(form.body(failure, scope.requestId)));
    }
  } finally {
    await scope.dispose(failure);
  }
}
