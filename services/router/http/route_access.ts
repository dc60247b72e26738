/**
 * Who may use which route. Every route says it where it is added; a server with a route that does not say it does not start.
 *
 *   open      everybody: whether the server lives, its version, the log-in page
 *   client    whoever has a key
 *   admin     whoever has an admin's key, or has logged in to the dashboard with it: what shows the inside of the cluster
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Failure } from '../../../shared/base/failure.ts';
import type { Caller, ResolveCaller } from '../access/caller.ts';

/** Who may use a route. */
type RouteAccess = 'open' | 'client' | 'admin';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Who may use the route. */
    access?: RouteAccess;
  }

  interface FastifyRequest {
    /** Who sends the request; set on routes that are not open. */
    caller: Caller;
  }
}

/** Options of a route for everybody. */
export const openRoute = { config: { access: 'open' } } as const;
/** Options of a route for whoever has a key. */
export const clientRoute = { config: { access: 'client' } } as const;
/** Options of a route for admins. */
export const adminRoute = { config: { access: 'admin' } } as const;

/** Path of the page on which an admin logs in. */
export const LOGIN = '/dashboard/login';

/**
 * Finds out who sends a request before its body is read, and refuses those who may not use the route: 401 without a key that is known, 403
 * for a client's key where an admin's is needed. A browser that opens a page of the dashboard is led to the log-in instead.
 */
export function checkAccess(app: FastifyInstance, callerOf: ResolveCaller): void {
  app.decorateRequest('caller');
  app.addHook('onRoute', ({ url, method, config }) => {
    if (config?.access !== undefined) return;
    const name = `${[method].flat().join()} ${url}`;
    throw new Error(
      `the route ${name} does not say who may use it: give it \`config: { access: 'open' | 'client' | 'admin' }\``,
    );
  });
  app.addHook('onRequest', (request, reply, done) => {
    const { access } = request.routeOptions.config;
    // A path that is none has no route.
    if (access === undefined || access === 'open') {
      done();
      return;
    }
    try {
      request.caller = callerOf(request);
      if (access === 'admin' && !request.caller.isAdmin)
        throw new Failure(
          'permission_denied',
          `${request.url.replace(/\?.*$/s, '')} is for admins: this API key is a client's`,
        );
      done();
    } catch (error) {
      if (isOpenedPage(request)) void reply.redirect(LOGIN.slice(1), 303);
      else done(error as Error);
    }
  });
}

/** Whether a browser opens a page of the dashboard, and shows its user whatever comes. */
function isOpenedPage({ method, url, headers }: FastifyRequest): boolean {
  return method === 'GET' && /^\/dashboard\/?(\?|$)/.test(url) && (headers.accept ?? '').includes('text/html');
}

/** Ends an answer when the key of its request is removed and `--revoke abort` says so. @returns a function that forgets it */
export function whenRevoked({ caller }: FastifyRequest, reply: FastifyReply): () => void {
  const { revoked } = caller;
  const end = (): void => {
    reply.raw.destroy();
  };
  revoked?.addEventListener('abort', end, { once: true });
  return () => {
    revoked?.removeEventListener('abort', end);
  };
}
