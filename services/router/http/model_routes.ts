/** Routes about the models and the server, none of which has a body. */
import type { FastifyInstance } from 'fastify';
import { softwareVersion } from '../../../shared/base/version.ts';
import { contextFor, type ApiContext } from '../api/api_context.ts';
import { ParameterFailure } from '../api/parameter_failure.ts';
import type { HttpApp } from '../router.ts';
import { openApiDocument } from './openapi.ts';
import { clientRoute, openRoute } from './route_access.ts';

/** Adds the routes to a server whose routes, with their methods, `routes` collects. */
export function addModelRoutes(
  app: FastifyInstance,
  { context, contexts, surfaces }: Pick<HttpApp, 'context' | 'contexts' | 'surfaces'>,
  routes: ReadonlyMap<string, readonly string[]>,
): void {
  const created = Math.floor(context.clock.wallMs() / 1_000);
  const model = ({ servedName: id, maxModelLen }: ApiContext): object => ({
    id,
    object: 'model',
    created,
    owned_by: 'penstock',
    root: id,
    parent: null,
    max_model_len: maxModelLen(),
  });
  // Without the prefix as llama.cpp has it.
  for (const path of ['/v1/models', '/models']) {
    app.get(path, clientRoute, ({ caller: { models } }) => {
      const own = contexts().filter(({ servedName }) => models?.includes(servedName) !== false);
      return { object: 'list', data: own.map(model) };
    });
    // Hugging Face names have a slash, which clients send as it is.
    app.get<{ Params: { '*': string } }>(`${path}/*`, clientRoute, ({ caller, params }) =>
      model(contextFor(caller, context, params['*'])),
    );
  }
  app.get('/version', openRoute, () => ({ version: softwareVersion }));
  app.get('/load', clientRoute, ({ caller: { isAdmin, tenant } }) => {
    const { admission } = context;
    return { server_load: isAdmin ? admission.numRequests : admission.numOf(tenant) };
  });
  app.get<{ Querystring: { model?: string } }>('/tokenizer_info', clientRoute, async ({ caller, query }) => {
    const { codec, maxModelLen } = contextFor(caller, context, query.model);
    if (!codec.hasTokenizer) throw new ParameterFailure('model: this model has no tokenizer', 'model');
    return { model_max_length: maxModelLen(), ...(await codec.tokenizerInfo()) };
  });
  let document: object | undefined;
  app.get('/openapi.json', clientRoute, () => (document ??= openApiDocument(routes, surfaces)));
}
