/** The router's HTTP face: OpenAI endpoints, health, metrics, and a look inside. */
import { readFileSync } from 'node:fs';
import fastify, { type FastifyInstance } from 'fastify';
import { chat } from './openai/chat.ts';
import { checkModel } from './openai/common.ts';
import { completions } from './openai/completions.ts';
import { errorBody, errorStatus } from './openai/errors.ts';
import { plainMessages, readDetokenizeBody, readTokenizeBody, ParameterFailure } from './openai/parameters.ts';
import type { ApiContext } from './openai/prompt_run.ts';
import type { ClusterView } from './cluster_view.ts';
import { poolView } from './pool_view.ts';
import type { PrefixIndex } from './prefix_index.ts';

/** A 100,000-token prompt as JSON numbers is under a megabyte; this leaves room for long text. */
const BODY_LIMIT_BYTES = 32 << 20;
const DEFAULT_LISTED = 100;

export interface HttpOptions {
  readonly context: ApiContext;
  readonly view: ClusterView;
  readonly index: PrefixIndex;
}

export function createHttpServer({ context, view, index }: HttpOptions): FastifyInstance {
  const app = fastify({ bodyLimit: BODY_LIMIT_BYTES, logger: false, forceCloseConnections: true });
  app.setErrorHandler((error, _request, reply) => {
    const status = errorStatus(error);
    if (status === 503) void reply.header('retry-after', '1');
    void reply.status(status).send(errorBody(error));
  });
  app.setNotFoundHandler((request, reply) => {
    const error = Object.assign(
      new Error(`${request.method} ${request.url} does not exist; see /v1/models, /health, /dashboard`),
      { statusCode: 404 },
    );
    void reply.status(404).send(errorBody(error));
  });

  app.post('/v1/chat/completions', (request, reply) => chat(context, request, reply));
  app.post('/v1/completions', (request, reply) => completions(context, request, reply));
  const created = Math.floor(context.clock.wallMs() / 1_000);
  const model = (): object => ({
    id: context.servedName,
    object: 'model',
    created,
    owned_by: 'penstock',
    max_model_len: context.maxModelLen(),
  });
  app.get('/v1/models', () => ({ object: 'list', data: [model()] }));
  app.get<{ Params: { id: string } }>('/v1/models/:id', (request) => {
    checkModel(context, request.params.id);
    return model();
  });
  addTokenRoutes(app, context);

  app.get('/health', (_request, reply) => {
    const numDecode = view.of('decode').filter(({ isPlaceable }) => isPlaceable).length;
    const status = context.isDraining() ? 'draining' : numDecode > 0 ? 'ok' : 'no decode instance';
    return reply.status(status === 'ok' ? 200 : 503).send({
      status,
      instances: Object.fromEntries(
        (['prefill', 'decode', 'store'] as const).map((role) => [role, view.of(role).length]),
      ),
    });
  });
  app.get('/metrics', async (_request, reply) =>
    reply.type(context.metrics.contentType).send(await context.metrics.text()),
  );
  app.get('/api/pool', () => poolView(view, index));
  app.get<{ Querystring: { limit?: string } }>('/api/requests', (request) => {
    const limit = Number(request.query.limit ?? DEFAULT_LISTED);
    if (!Number.isInteger(limit) || limit < 1) throw new ParameterFailure('limit: a whole number from 1', 'limit');
    return { requests: context.requests.list(limit) };
  });
  const dashboard = readFileSync(new URL('./dashboard.html', import.meta.url), 'utf8');
  app.get('/dashboard', (_request, reply) => reply.type('text/html; charset=utf-8').send(dashboard));
  app.get('/', (_request, reply) => reply.redirect('/dashboard'));
  return app;
}

function addTokenRoutes(app: FastifyInstance, context: ApiContext): void {
  app.post('/tokenize', async (request) => {
    const body = readTokenizeBody(request.body);
    checkModel(context, body.model);
    if ((body.prompt === undefined) === (body.messages === undefined)) {
      throw new ParameterFailure('prompt: give either prompt or messages', 'prompt');
    }
    const tokens = body.messages
      ? await context.codec.encodeChat(plainMessages(body.messages), body.add_generation_prompt ?? true)
      : await context.codec.encode(body.prompt ?? '', body.add_special_tokens ?? true);
    return { count: tokens.length, max_model_len: context.maxModelLen(), tokens };
  });
  app.post('/detokenize', async (request) => {
    const body = readDetokenizeBody(request.body);
    checkModel(context, body.model);
    if (!context.codec.hasTokenizer) throw new ParameterFailure('tokens: this model has no tokenizer', 'tokens');
    const [prompt = ''] = await context.codec.decode([body.tokens], false);
    return { prompt };
  });
}
