/** The router's HTTP server: OpenAI endpoints, health, metrics, the dashboard and its `/api/*`. Every error has the form of the path's API. */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify';
import { errorStatus, Failure, messageOf } from '../../../shared/base/failure.ts';
import type { Bodies } from '../api/bodies.ts';
import type { RouterMetrics } from '../metrics/metrics.ts';
import type { ErrorForm } from '../api/errors.ts';
import type { HttpApp, ListenHttp } from '../router.ts';
import { Cors } from './cors.ts';
import { countRequests } from './http_counts.ts';
import { addHealthRoutes } from './health_routes.ts';
import { namesOf } from './http_exchange.ts';
import { secureSide } from './https.ts';
import { inScope } from './in_scope.ts';
import { addInsideRoutes, addWatchRoutes } from './inside_routes.ts';
import { addLoginRoutes } from './login_routes.ts';
import { addModelRoutes } from './model_routes.ts';
import { PageGuard } from './page_guard.ts';
import { readBody } from './read_body.ts';
import { tellEnds } from './request_ends.ts';
import { checkAccess } from './route_access.ts';
import { addKeptRoutes, addSurfaces, type ErrorHandlers } from './surface_routes.ts';
import { boundUnwanted, holdContinue, wantBody } from './unwanted_bodies.ts';

/** Milliseconds between checks for connections whose request arrives too slowly. */
const CHECK_CONNECTIONS_MS = 1_000;

/**
 * Stubs in place of fastify's schema compilers, which would be loaded and started. No route has a schema: bodies are validated by the
 * endpoints.
 */
const withoutCompilers = {
  buildValidator: (() => () => () => true) as never,
  buildSerializer: (() => () => JSON.stringify) as never,
};

function createHttpServer(httpApp: HttpApp): FastifyInstance {
  const { context, config, surfaces } = httpApp;
  const { usualErrors } = surfaces;
  /** Returns the form of the errors of a request whose route is not known. */
  const formOf = ({ request: { url } }: FastifyReply): ErrorForm => surfaces.errorFormOf(url);
  const secure = secureSide(httpApp);
  // A request without a Host is refused below, in OpenAI's shape.
  const http = { connectionsCheckingInterval: CHECK_CONNECTIONS_MS, requireHostHeader: false };
  const app = fastify({
    ...secure?.optionsWith(http),
    logger: false,
    schemaController: { compilersFactory: withoutCompilers },
    forceCloseConnections: true,
    // A start on a busy machine takes as long as it takes.
    pluginTimeout: 0,
    requestTimeout: config.body_timeout_ms,
    connectionTimeout: context.stalledReaderMs,
    http,
    frameworkErrors: (error, _request, reply) => {
      answerError(helpful(error), reply, context.metrics, formOf(reply));
    },
    clientErrorHandler: (error, socket) => {
      if (secure?.hasEnded(error, socket) !== true) answerClientError(error, socket, context.metrics, usualErrors);
    },
  });
  secure?.guard(app);
  // A client that closes its side after the request still reads the answer; withClient finds out who is there.
  (app.server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  // Node limits a whole request by the larger of headersTimeout and requestTimeout, so the former must not exceed the latter.
  app.server.headersTimeout = Math.min(app.server.headersTimeout, config.body_timeout_ms);
  // Bounds the open connections (P1), each of which may hold a body that is arriving.
  app.server.maxConnections = config.max_connections;
  endStalled(app.server);
  boundUnwanted(app.server);
  app.setErrorHandler((error, _request, reply) => {
    answerError(helpful(error), reply, context.metrics, formOf(reply));
  });
  const cors = new Cors(config.allowed_origins, surfaces.clientPaths);
  // Before fastify's listener, so that answers that fastify makes itself, and hijacked ones, have these headers too.
  app.server.prependListener('request', (request, response) => {
    cors.allow(request, response);
  });
  answerUnusual(app.server, cors, context.metrics, usualErrors);
  const allowed = new Map<string, string[]>();
  const ofOne = routeFinder(surfaces);
  const routes = {
    clientPaths: surfaces.clientPaths,
    routeOf: (path: string) => [path, ofOne(path)].find((one) => allowed.has(one)),
  };
  countRequests(app.server, httpApp.exposition.http, context.clock, routes);
  app.addHook('onRoute', ({ method, url }) => {
    const path = url.replace(/:(\w+)/g, '{$1}');
    allowed.set(path, [...(allowed.get(path) ?? []), ...[method].flat()]);
  });
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.replace(/\?.*$/, '');
    const methods = allowed.get(path) ?? allowed.get(ofOne(path));
    const isKnown = methods !== undefined && !methods.includes(request.method);
    if (isKnown) void reply.header('allow', methods.join(', '));
    const message = isKnown
      ? `${request.method} is not allowed for ${path}; allowed are ${methods.join(', ')}`
      : `${request.method} ${request.url.slice(0, 200)} does not exist; there are ${listed(allowed)}`;
    answerError(httpError(isKnown ? 405 : 404, message), reply, context.metrics, formOf(reply));
  });
  readBodies(app, context.bodies);

  tellEnds(app, context.clock, httpApp.onRequestEnd);
  refusePages(app, httpApp);
  app.addHook('onRequest', (request, reply, done) => {
    const preflight = cors.preflight(request.raw);
    if (preflight) {
      // llama.cpp's clients expect 200 rather than 204.
      void reply.code(200).headers(preflight).send();
      return;
    }
    if (request.raw.httpVersion === '1.1' && request.headers.host === undefined) {
      const error = httpError(400, 'the request has no Host header: HTTP/1.1 needs one');
      answerError(error, reply, context.metrics, formOf(reply));
      return;
    }
    const { clientId } = namesOf(request.headers);
    if (clientId !== undefined) void reply.header('x-request-id', clientId);
    done();
  });
  checkAccess(app, httpApp.callerOf);
  addRoutes(app, httpApp, allowed);
  return app;
}

/** Adds all routes, whose methods `allowed` collects, each group in a scope of its own: in the order in which the error of an unknown path lists them. */
function addRoutes(app: FastifyInstance, httpApp: HttpApp, allowed: ReadonlyMap<string, readonly string[]>): void {
  const { metrics } = httpApp.context;
  const handleErrors: ErrorHandlers = (scope, { errors }) => {
    scope.setErrorHandler((error, _request, reply) => {
      answerError(helpful(error), reply, metrics, errors);
    });
  };
  addSurfaces(app, httpApp, handleErrors, undefined);
  inScope(app, (scope) => {
    addModelRoutes(scope, httpApp, allowed);
  });
  addKeptRoutes(app, httpApp, handleErrors);
  inScope(app, (scope) => {
    addHealthRoutes(scope, httpApp);
  });
  inScope(app, (scope) => {
    addLoginRoutes(scope, httpApp.logIns);
  });
  inScope(app, (scope) => {
    addInsideRoutes(scope, httpApp);
  });
  addSurfaces(app, httpApp, handleErrors, 'operators');
  inScope(app, (scope) => {
    addWatchRoutes(scope, httpApp);
  });
}

/** Refuses requests of web pages that must not reach `/api/*`. */
function refusePages(app: FastifyInstance, { config, context, surfaces }: HttpApp): void {
  const guard = new PageGuard(config.allowed_origins, surfaces.clientPaths);
  app.addHook('onRequest', (request, reply, done) => {
    const refusal = guard.refusal(request.raw);
    if (refusal === undefined) done();
    else answerError(httpError(403, refusal), reply, context.metrics, surfaces.errorFormOf(request.url));
  });
}

/** Returns a function that returns the path of a model, or of what an endpoint keeps, as the route that it is one of. */
function routeFinder({ routes }: HttpApp['surfaces']): (path: string) => string {
  const kept = routes.map(({ path }): [pattern: RegExp, route: string] => [
    new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`),
    path,
  ]);
  return (path) => kept.find(([pattern]) => pattern.test(path))?.[1] ?? path.replace(/^((\/v1)?\/models)\/.*$/, '$1/*');
}

/** Installs the body parser: bodies are received as bytes, limited each and together, and parsed later by their endpoints. */
function readBodies(app: FastifyInstance, bodies: Bodies): void {
  app.addHook('preParsing', ({ raw, is404, routeOptions }, _reply, _payload, done) => {
    // Endpoints say it themselves, when they have room for the body.
    if (!is404 && routeOptions.config.takesBody !== true) wantBody(raw);
    done();
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request, payload, done) => {
    if (request.routeOptions.config.takesBody !== true) {
      payload.resume();
      done(null, undefined);
      return;
    }
    readBody(bodies, payload, request.headers['content-length']).then(
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
 * Ends connections on which nothing moves: those that do not take what was written to them, and those that stay idle after an
 * answer. One that waits for its answer is left alone. So is one that has sent nothing yet, which clients' pools and browsers open
 * ahead: the limit for the arrival of a request ends it.
 */
function endStalled(server: Server): void {
  server.on('timeout', (socket: Socket & { _httpMessage?: unknown }) => {
    const isIdle = !socket._httpMessage && socket.bytesRead > 0;
    if (socket.writableLength > 0 || isIdle) socket.destroy();
  });
}

/** Returns the paths of the API with their methods on one line, for the error of an unknown path. */
function listed(allowed: ReadonlyMap<string, readonly string[]>): string {
  const paths = [...allowed].filter(([url, methods]) => url !== '/' && methods.some((method) => method !== 'HEAD'));
  return paths
    .map(([url, methods]) => `${methods.filter((method) => method !== 'HEAD').join(' and ')} ${url}`)
    .join(', ');
}

function httpError(statusCode: number, message: string): Error {
  return Object.assign(new Error(message), { statusCode });
}

/** Replaces errors of fastify whose message does not say what to do. */
function helpful(error: unknown): unknown {
  const { statusCode, code } = error as { statusCode?: number; code?: string };
  if (statusCode === 415)
    return httpError(415, 'send the body as JSON, with the header content-type: application/json');
  if (code === 'FST_ERR_BAD_URL') return httpError(400, 'the URL has an invalid percent escape: write a % as %25');
  return error;
}

/** Answers requests that Node would answer itself: an Expect header, and CONNECT. */
function answerUnusual(server: Server, cors: Cors, metrics: RouterMetrics, form: ErrorForm): void {
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    const failure = httpError(417, 'the header Expect is supported with 100-continue only: leave it out');
    metrics.failed(failure);
    cors.allow(request, response);
    const body = JSON.stringify(form.body(failure, null));
    response.writeHead(417, { ...form.headers(failure, null), 'content-length': Buffer.byteLength(body) }).end(body);
    request.resume();
  });
  holdContinue(server);
  server.on('connect', (_request, socket: Socket) => {
    const failure = Object.assign(new Error('CONNECT is not allowed: this is no proxy'), { code: CONNECT });
    answerClientError(failure, socket, metrics, form);
  });
}

function answerError(error: unknown, reply: FastifyReply, metrics: RouterMetrics, form: ErrorForm): void {
  if (!(error instanceof Failure && error.code === 'cancelled')) metrics.failed(error);
  const { outcome, headers } = reply.request;
  if (outcome) outcome.failure = error;
  const { clientId = null } = namesOf(headers);
  void reply.status(errorStatus(error)).headers(form.headers(error, clientId)).send(form.body(error, clientId));
}

/** Error code of a CONNECT request, in the style of Node's error codes; Node has none for this case. */
const CONNECT = 'PENSTOCK_CONNECT';
const clientStatus: Record<string, [status: string, code: number]> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 408],
  [CONNECT]: ['405 Method Not Allowed', 405],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 431],
};

/** Answers a connection whose bytes are not valid HTTP, or whose request did not arrive in time, then closes the connection. */
function answerClientError(
  error: Error & { code?: string },
  socket: Socket,
  metrics: RouterMetrics,
  form: ErrorForm,
): void {
  const { _httpMessage: answer } = socket as Socket & { _httpMessage?: { headersSent: boolean } };
  // Never write an error into an answer that has begun.
  if (error.code === 'ECONNRESET' || !socket.writable || answer?.headersSent) {
    socket.destroy();
    return;
  }
  const [status, statusCode] = clientStatus[error.code ?? ''] ?? ['400 Bad Request', 400];
  const message =
    { 408: 'the request did not arrive in time', 431: 'the headers are too long: shorten them' }[statusCode] ??
    messageOf(error);
  const failure = httpError(statusCode, message);
  metrics.failed(failure);
  const body = JSON.stringify(form.body(failure, null));
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n`;
  socket.end(head + body, () => {
    // Discard whatever the client still sends.
    socket.destroy();
  });
}

/** Starts the HTTP server on `bind`. Rejects with an Error naming the address, for instance when it is in use. */
export const listenHttp: ListenHttp = async (bind, httpApp) => {
  const app = createHttpServer(httpApp);
  // Resolve `localhost` to one address: fastify would open a server for each, and only one of them with the settings above.
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
