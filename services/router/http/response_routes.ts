/** Routes of the stored answers of `/v1/responses`. */
import type { FastifyInstance } from 'fastify';
import { jsonType } from '../api/errors.ts';
import { ParameterFailure } from '../api/parameter_failure.ts';
import type { ResponseStore } from '../surfaces/responses/response_store.ts';

/** Adds the routes that return and forget an answer. */
export function addResponseRoutes(app: FastifyInstance, responses: ResponseStore): void {
  const path = '/v1/responses/:id';
  interface Named {
    Params: { id: string };
    Querystring: { stream?: string };
  }
  app.get<Named>(path, ({ params, query }, reply) => {
    if (query.stream !== undefined && query.stream !== 'false')
      throw new ParameterFailure('stream: an answer is streamed once, while it is made; leave it out', 'stream');
    return reply.header('content-type', jsonType).send(responses.answer(params.id));
  });
  app.delete<Named>(path, ({ params: { id } }) => {
    responses.delete(id);
    return { id, object: 'response', deleted: true };
  });
}
