/** The router's HTTP face: OpenAI endpoints, health, metrics, and a look inside. Whatever goes wrong has OpenAI's shape. */
import { readFileSync } from 'node:fs';
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { softwareVersion } from '../../shared/base/version.ts';
import { chat } from './openai/chat.ts';
import { checkModel } from './openai/common.ts';
import { completions } from './openai/completions.ts';
import { errorBody, errorStatus } from './openai/errors.ts';
import { ParameterFailure } from './openai/parameter_failure.ts';
import type { ApiContext } from './openai/prompt_run.ts';
import { namesOf } from './openai/request_scope.ts';
import { addTokenRoutes, withBody } from './openai/token_routes.ts';
import type { ClusterView } from './cluster_view.ts';
import type { Conductor } from './conductor/conductor.ts';
import type { RouterMetrics } from './metrics.ts';
import { poolView } from './pool_view.ts';
import type { PrefixIndex } from './prefix_index.ts';

const DEFAULT_LISTED = 100;
/** Connections whose request dribbles are looked for this often. */
const CHECK_CONNECTIONS_MS = 1_000;

export interface HttpOptions {
  readonly conductor: Conductor;
  readonly context: ApiContext;
  readonly view: ClusterView;
  readonly index: PrefixIndex;
}

export function createHttpServer({ context, conductor, view, index }: HttpOptions): FastifyInstance {
  const app = fastify({
    logger: false,
    forceCloseConnections: true,
    requestTimeout: context.bodyTimeoutMs,
    connectionTimeout: context.stalledReaderMs,
    http: { connectionsCheckingInterval: CHECK_CONNECTIONS_MS },
    frameworkErrors: (error, _request, reply) => {
      answerError(error, reply, context.metrics);
    },
    clientErrorHandler: (error, socket) => {
      answerClientError(error, socket, context.metrics);
    },
  });
  // A client that closes its side after the request still reads the answer; RequestScope finds out who is there.
  (app.server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  // Node takes the larger of the two for bodies, whichever it is.
  app.server.headersTimeout = Math.min(app.server.headersTimeout, context.bodyTimeoutMs);
  // Open at once (P1); each may hold a body that arrives.
  app.server.maxConnections = context.maxConnections;
  endStalled(app.server);
  app.setErrorHandler((error, _request, reply) => {
    answerError(error, reply, context.metrics);
  });
  const allowed = new Map<string, string[]>();
  app.addHook('onRoute', ({ method, url }) => {
    allowed.set(url, [...(allowed.get(url) ?? []), ...[method].flat()]);
  });
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.replace(/\?.*$/, '');
    const methods = allowed.get(path) ?? (path.startsWith('/v1/models/') ? allowed.get('/v1/models/*') : undefined);
    const isKnown = methods !== undefined && !methods.includes(request.method);
    if (isKnown) void reply.header('allow', methods.join(', '));
    const message = isKnown
      ? `${request.method} is not allowed for ${path}; allowed are ${methods.join(', ')}`
      : `${request.method} ${request.url.slice(0, 200)} does not exist; see /v1/models, /health, /dashboard`;
    answerError(Object.assign(new Error(message), { statusCode: isKnown ? 405 : 404 }), reply, context.metrics);
  });
  takeBodies(app, context);

  app.addHook('onRequest', (request, reply, done) => {
    const { clientId } = namesOf(request);
    if (clientId !== undefined) void reply.header('x-request-id', clientId);
    done();
  });
  app.post('/v1/chat/completions', withBody, (request, reply) => chat(context, request, reply));
  app.post('/v1/completions', withBody, (request, reply) => completions(context, request, reply));
  addTokenRoutes(app, context);
  const created = Math.floor(context.clock.wallMs() / 1_000);
  const model = (): object => ({
    id: context.servedName,
    object: 'model',
    created,
    owned_by: 'penstock',
    max_model_len: context.maxModelLen(),
  });
  app.get('/v1/models', () => ({ object: 'list', data: [model()] }));
  // Hugging Face names have a slash, which clients send as it is.
  app.get<{ Params: { '*': string } }>('/v1/models/*', (request) => {
    checkModel(context, request.params['*']);
    return model();
  });
  app.get('/version', () => ({ version: softwareVersion }));
  addHealthRoutes(app, context, view);
  addInsideRoutes(app, { context, conductor, view, index });
  return app;
}

/** Bodies arrive as bytes, bounded each and in all; what they say is read by those who know. */
function takeBodies(app: FastifyInstance, { bodies }: ApiContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request, payload, done) => {
    if (!(request.routeOptions.config as { takesBody?: boolean }).takesBody) {
      payload.resume();
      done(null, undefined);
      return;
    }
    bodies.take(payload, request.headers['content-length']).then(
      (body) => {
        done(null, body);
      },
      (error: unknown) => {
        done(error as Error);
      },
    );
  });
}

/**
 * A connection on which nothing moves: one that waits for its answer is left alone, one that does not take what was written to it,
 * or is idle, is ended.
 */
function endStalled(server: Server): void {
  server.on('timeout', (socket: Socket & { _httpMessage?: unknown }) => {
    if (socket.writableLength > 0 || !socket._httpMessage) socket.destroy();
  });
}

function answerError(error: unknown, reply: FastifyReply, metrics: RouterMetrics): void {
  if (!(error instanceof Failure && error.code === 'cancelled')) metrics.failed(error);
  const status = errorStatus(error);
  if (status === 503) void reply.header('retry-after', '1');
  void reply.status(status).send(errorBody(error));
}

const clientStatus: Record<string, [status: string, code: number]> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 408],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 431],
};

/** What is no HTTP, or does not become a request in time. */
function answerClientError(error: Error & { code?: string }, socket: Socket, metrics: RouterMetrics): void {
  const { _httpMessage: answer } = socket as Socket & { _httpMessage?: { headersSent: boolean } };
  // An answer that has begun is not written into.
  if (error.code === 'ECONNRESET' || !socket.writable || answer?.headersSent) {
    socket.destroy();
    return;
  }
  const [status, statusCode] = clientStatus[error.code ?? ''] ?? ['400 Bad Request', 400];
  const message = statusCode === 408 ? 'the request did not arrive in time' : messageOf(error);
  const failure = Object.assign(new Error(message), { statusCode });
  metrics.failed(failure);
  const body = JSON.stringify(errorBody(failure));
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n`;
  socket.end(head + body, () => {
    // A sender that dribbles on is not listened to.
    socket.destroy();
  });
}

function addHealthRoutes(app: FastifyInstance, context: ApiContext, view: ClusterView): void {
  const health = (): { code: number; body: object } => {
    const numDecode = view.of('decode').filter(({ isPlaceable }) => isPlaceable).length;
    const status = context.isDraining() ? 'draining' : numDecode > 0 ? 'ok' : 'no decode instance';
    const roles = ['prefill', 'decode', 'store'] as const;
    const instances = Object.fromEntries(roles.map((role) => [role, view.of(role).length]));
    return { code: status === 'ok' ? 200 : 503, body: { status, instances } };
  };
  app.get('/health', (_request, reply) => {
    const { code, body } = health();
    return reply.status(code).send(body);
  });
  // As SageMaker and vLLM have it.
  app.route({
    method: ['GET', 'POST'],
    url: '/ping',
    handler: (_request, reply) => reply.status(health().code).send(),
  });
}

function addInsideRoutes(app: FastifyInstance, { context, conductor, view, index }: HttpOptions): void {
  app.get('/metrics', async (_request, reply) =>
    reply.type(context.metrics.contentType).send(await context.metrics.text()),
  );
  app.get('/api/pool', () => poolView(view, index, context));
  type Listed = { Querystring: { limit?: string } };
  const limitOf = ({ limit }: Listed['Querystring']): number => {
    const number = Number(limit ?? DEFAULT_LISTED);
    if (!Number.isInteger(number) || number < 1) throw new ParameterFailure('limit: a whole number from 1', 'limit');
    return number;
  };
  app.get<Listed>('/api/requests', ({ query }) => ({ requests: context.requests.list(limitOf(query)) }));
  app.get<Listed>('/api/decisions', ({ query }) => ({ decisions: conductor.log.slice(-limitOf(query)).reverse() }));
  const dashboard = readFileSync(new URL('./dashboard.html', import.meta.url), 'utf8');
  app.get('/dashboard', (_request, reply) => reply.type('text/html; charset=utf-8').send(dashboard));
  app.get('/', (_request, reply) => reply.redirect('/dashboard'));
}

/** @returns the URL. @throws Error naming the address, for instance when it is in use. */
export async function listenHttp(app: FastifyInstance, bind: string): Promise<string> {
  // One address: of `localhost` fastify would make two servers, and only one of them as it is set up here.
  const host = bind
    .replace(/:\d+$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/^localhost$/, '127.0.0.1');
  try {
    return await app.listen({ host, port: Number(bind.slice(bind.lastIndexOf(':') + 1)) });
  } catch (cause) {
    throw new Error(
      `cannot listen on ${bind}: ${messageOf(cause)}; choose another address with --bind or end what uses this one`,
      { cause },
    );
  }
}
