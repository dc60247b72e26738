/**
 * `/tokenize` and `/detokenize`. They count as requests, and what a client that left asked for is not begun; lists go out as the
 * tokenizer's thread wrote them.
 */
import type { FastifyInstance } from 'fastify';
import { checkModel, ignoredHeaders } from './common.ts';
import { ParameterFailure } from './parameter_failure.ts';
import type { ApiContext } from './prompt_run.ts';
import { inScope } from './request_scope.ts';

/** Of a route whose body is taken in. */
export const withBody = { config: { takesBody: true } };

export function addTokenRoutes(app: FastifyInstance, context: ApiContext): void {
  app.post('/tokenize', withBody, (request, reply) =>
    inScope(context, request, reply, async (scope) => {
      const record = scope.open('/tokenize');
      const body = await context.bodies.read('tokenize', scope.body, scope.signal);
      checkModel(context, body.model);
      const { count, tokens, strings } = await context.codec.tokenize(body, scope.signal);
      context.requests.close(record, 'finished', 'stop');
      void reply.headers(ignoredHeaders(body.ignored)).type('application/json; charset=utf-8');
      return `{"count":${count},"max_model_len":${context.maxModelLen()},"tokens":${tokens},"token_strs":${strings}}`;
    }),
  );
  app.post('/detokenize', withBody, (request, reply) =>
    inScope(context, request, reply, async (scope) => {
      const record = scope.open('/detokenize');
      const body = await context.bodies.read('detokenize', scope.body, scope.signal);
      checkModel(context, body.model);
      if (!context.codec.hasTokenizer) throw new ParameterFailure('tokens: this model has no tokenizer', 'tokens');
      const prompt = await context.codec.detokenize(body.tokens, scope.signal);
      context.requests.close(record, 'finished', 'stop');
      void reply.headers(ignoredHeaders(body.ignored));
      return { prompt };
    }),
  );
}
