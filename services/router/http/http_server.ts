/** The router's HTTP face: OpenAI endpoints, health, metrics, and a look inside. Whatever goes wrong has OpenAI's shape. */
import { readFileSync } from 'node:fs';
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { softwareVersion } from '../../../shared/base/version.ts';
import { noBody, type Bodies, type Body } from '../openai/bodies.ts';
import type { RouterMetrics } from '../metrics.ts';
import { endpointPaths, serve } from '../openai/endpoints.ts';
import { errorBody, errorHeaders, errorStatus } from '../openai/errors.ts';
import { ParameterFailure } from '../openai/parameter_failure.ts';
import { poolView } from '../cluster/pool_view.ts';
import { mergeMetrics } from '../merge_metrics.ts';
import type { ApiContext } from '../openai/api_context.ts';
import type { Face, ListenFace } from '../router.ts';
import { namesOf, withClient } from './http_exchange.ts';
import { takeBody } from './take_body.ts';

const DEFAULT_LISTED = 100;
/** Connections whose request dribbles are looked for this often. */
const CHECK_CONNECTIONS_MS = 1_000;

/** Bodies are looked at below this: without these the framework loads and starts compilers of its own. No route has a schema. */
const withoutCompilers = {
  buildValidator: (() => () => () => true) as never,
  buildSerializer: (() => () => JSON.stringify) as never,
};

function createHttpServer(face: Face): FastifyInstance {
  const { context, config } = face;
  const app = fastify({
    logger: false,
    schemaController: { compilersFactory: withoutCompilers },
    forceCloseConnections: true,
    requestTimeout: config.body_timeout_ms,
    connectionTimeout: context.stalledReaderMs,
    http: { connectionsCheckingInterval: CHECK_CONNECTIONS_MS },
    frameworkErrors: (error, _request, reply) => {
      answerError(error, reply, context.metrics);
    },
    clientErrorHandler: (error, socket) => {
      answerClientError(error, socket, context.metrics);
    },
  });
  // A client that closes its side after the request still reads the answer; withClient finds out who is there.
  (app.server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  // Node takes the larger of the two for bodies, whichever it is.
  app.server.headersTimeout = Math.min(app.server.headersTimeout, config.body_timeout_ms);
  // Open at once (P1); each may hold a body that arrives.
  app.server.maxConnections = config.max_connections;
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
  takeBodies(app, context.bodies);

  app.addHook('onRequest', (request, reply, done) => {
    const { clientId } = namesOf(request.headers);
    if (clientId !== undefined) void reply.header('x-request-id', clientId);
    done();
  });
  const { clock, admission } = context;
  const answering = (change: 1 | -1): void => {
    admission.answering(change);
  };
  for (const path of endpointPaths) {
    app.post(path, withBody, async (request, reply) => {
      reply.hijack();
      const body = (request.body as Body | undefined) ?? noBody;
      await withClient(request.raw, reply.raw, body, { clock, answering }, (exchange) =>
        serve(context, path, exchange),
      );
    });
  }
  const created = Math.floor(context.clock.wallMs() / 1_000);
  const model = ({ servedName: id, maxModelLen }: ApiContext): object => ({
    ...{ id, object: 'model', created, owned_by: 'penstock', max_model_len: maxModelLen() },
  });
  app.get('/v1/models', () => ({ object: 'list', data: face.contexts().map(model) }));
  // Hugging Face names have a slash, which clients send as it is.
  app.get<{ Params: { '*': string } }>('/v1/models/*', (request) => {
    return model(context.of(request.params['*']));
  });
  app.get('/version', () => ({ version: softwareVersion }));
  addHealthRoutes(app, face);
  addInsideRoutes(app, face);
  return app;
}

/** Of a route whose body is taken in. */
const withBody = { config: { takesBody: true } };

/** Bodies arrive as bytes, bounded each and in all; what they say is read by those who know. */
function takeBodies(app: FastifyInstance, bodies: Bodies): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request, payload, done) => {
    if (!(request.routeOptions.config as { takesBody?: boolean }).takesBody) {
      payload.resume();
      done(null, undefined);
      return;
    }
    takeBody(bodies, payload, request.headers['content-length']).then(
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
  void reply.status(errorStatus(error)).headers(errorHeaders(error)).send(errorBody(error));
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

function addHealthRoutes(app: FastifyInstance, { context, view }: Face): void {
  const health = (): { code: number; body: object } => {
    const numDecode = view.of('decode').filter(({ isPlaceable }) => isPlaceable).length;
    const status = context.admission.isDraining ? 'draining' : numDecode > 0 ? 'ok' : 'no decode instance';
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

function addInsideRoutes(app: FastifyInstance, { context, contexts, decisions, view, index, bus }: Face): void {
  app.get('/metrics', async (_request, reply) => {
    const texts = await Promise.all([...new Set([context, ...contexts()])].map(({ metrics }) => metrics.text()));
    return reply.type(context.metrics.contentType).send(texts.length === 1 ? texts[0] : mergeMetrics(texts));
  });
  app.get('/api/pool', () => poolView({ view, index, bus }, context));
  type Listed = { Querystring: { limit?: string } };
  const limitOf = ({ limit }: Listed['Querystring']): number => {
    const number = Number(limit ?? DEFAULT_LISTED);
    if (!Number.isInteger(number) || number < 1) throw new ParameterFailure('limit: a whole number from 1', 'limit');
    return number;
  };
  app.get<Listed>('/api/requests', ({ query }) => ({ requests: context.requests.list(limitOf(query)) }));
  app.get<Listed>('/api/decisions', ({ query }) => ({ decisions: decisions().slice(-limitOf(query)).reverse() }));
  const dashboard = readFileSync(new URL('./dashboard.html', import.meta.url), 'utf8');
  app.get('/dashboard', (_request, reply) => reply.type('text/html; charset=utf-8').send(dashboard));
  app.get('/', (_request, reply) => reply.redirect('/dashboard'));
}

/** @throws Error naming the address, for instance when it is in use. */
export const listenHttp: ListenFace = async (bind, face) => {
  face.context.metrics.addProcess();
  const app = createHttpServer(face);
  // One address: of `localhost` fastify would make two servers, and only one of them as it is set up here.
  const host = bind
    .replace(/:\d+$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/^localhost$/, '127.0.0.1');
  try {
    const url = await app.listen({ host, port: Number(bind.slice(bind.lastIndexOf(':') + 1)) });
    return { url, close: () => app.close() };
  } catch (cause) {
    throw new Error(
      `cannot listen on ${bind}: ${messageOf(cause)}; choose another address with --bind or end what uses this one`,
      { cause },
    );
  }
};
