/** Routes of the API's endpoints: a scope of the server each, whose errors have the form of its API. */
import type { FastifyInstance } from 'fastify';
import { jsonType } from '../api/errors.ts';
import { noBody, type Body } from '../api/bodies.ts';
import { openaiLimitHeaders } from '../api/limit_headers.ts';
import type { Surface } from '../api/surface.ts';
import type { HttpApp } from '../router.ts';
import { inScope } from './in_scope.ts';
import { withClient } from './http_exchange.ts';
import { checkLimits } from './limited_routes.ts';

/** Installs the form of a surface's errors in a scope of the server. */
export type ErrorHandlers = (app: FastifyInstance, surface: Surface) => void;

/** Adds the endpoints of the API that are for this audience; undefined: for clients. */
export function addSurfaces(
  app: FastifyInstance,
  { context, surfaces, limits }: Pick<HttpApp, 'context' | 'surfaces' | 'limits'>,
  handleErrors: ErrorHandlers,
  audience: Surface['audience'],
): void {
  const { clock, admission } = context;
  const answering = (change: 1 | -1): void => {
    admission.answering(change);
  };
  for (const [path, surface] of surfaces.paths.filter(([, one]) => one.audience === audience)) {
    inScope(app, (scope) => {
      handleErrors(scope, surface);
      const access = audience === 'operators' ? 'admin' : 'client';
      if (limits && access === 'client')
        checkLimits(scope, { limits: limits.tenants, clock, form: surface.limitHeaders ?? openaiLimitHeaders });
      scope.post(path, { config: { takesBody: true, access } }, async (request, reply) => {
        reply.hijack();
        const { caller, outcome, allowance, showLimits: onBegin } = request;
        request.allowance = undefined;
        const body = (request.body as Body | undefined) ?? noBody;
        const served = withClient(request.raw, reply.raw, body, { clock, answering, onBegin }, (exchange) =>
          surfaces.serve(context, path, { ...exchange, caller, outcome, allowance }),
        );
        if (outcome) outcome.served = served;
        await served;
      });
    });
  }
}

/** Adds the routes about what endpoints keep. */
export function addKeptRoutes(
  app: FastifyInstance,
  { surfaces }: Pick<HttpApp, 'surfaces'>,
  handleErrors: ErrorHandlers,
): void {
  interface Asked {
    Params: Record<string, string>;
    Querystring: Record<string, string | undefined>;
  }
  for (const { method, path, surface, answer } of surfaces.routes) {
    inScope(app, (scope) => {
      handleErrors(scope, surface);
      scope.route<Asked>({
        method,
        url: path.replace(/\{(\w+)\}/g, ':$1'),
        config: { access: 'client' },
        handler: ({ params, query, caller }, reply) => {
          const answered = answer(params, query, caller);
          if (Buffer.isBuffer(answered)) void reply.header('content-type', jsonType);
          return reply.send(answered);
        },
      });
    });
  }
}
