/** The API's endpoints: one function per path, each with its own RequestScope. Every error is sent in the form of the path's API. */
import { countTokens, messages } from './anthropic/messages.ts';
import type { ApiContext } from '../api/api_context.ts';
import { chat } from './openai/chat.ts';
import { completions } from './openai/completions.ts';
import { embeddings } from './openai/embeddings.ts';
import { errorFormOf } from './error_form.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import { errorStatus } from '../../../shared/base/failure.ts';
import { ResponseStore } from './responses/response_store.ts';
import type { Exchange } from '../api/exchange.ts';
import { invocations } from './openai/invocations.ts';
import { responsesEndpoint } from './responses/responses.ts';
import { RequestScope } from '../api/request_scope.ts';
import { applyTemplate, detokenize, tokenize } from './openai/token_endpoints.ts';

/** Writes the answer to the scope's sink, or throws the error that the client is sent. */
type Endpoint = (context: ApiContext, scope: RequestScope) => Promise<void>;

function endpointsOf(stored: ResponseStore) {
  return {
    '/v1/chat/completions': chat,
    '/v1/completions': completions,
    '/v1/embeddings': embeddings,
    '/v1/responses': responsesEndpoint(stored),
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
}

/** Path of an endpoint. */
export type EndpointPath = keyof ReturnType<typeof endpointsOf>;

/** The endpoints of a router, and what they keep for their clients. */
export class Surfaces {
  /** Answers of `/v1/responses`. */
  readonly responses: ResponseStore;
  readonly #endpoints: Readonly<Record<EndpointPath, Endpoint>>;

  constructor(clock: Clock) {
    this.responses = new ResponseStore(clock);
    this.#endpoints = endpointsOf(this.responses);
  }

  /** Paths of all endpoints. */
  get paths(): readonly EndpointPath[] {
    return Object.keys(this.#endpoints) as EndpointPath[];
  }

  /** Resolves when the request has ended and nothing of it is left; never rejects. */
  async serve(context: ApiContext, path: EndpointPath, exchange: Exchange): Promise<void> {
    const scope = new RequestScope(context, exchange);
    const { sink } = exchange;
    let failure: unknown;
    try {
      await this.#endpoints[path](context, scope);
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
}
