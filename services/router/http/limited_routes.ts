/**
 * Judges requests by the limits of their tenants when their headers have come: a flood costs neither memory for bodies nor time of threads.
 * Counted are the endpoints of the API that take a body; who lists models or reads a stored response uses nothing of a limit.
 */
import type { FastifyInstance } from 'fastify';
import type { Clock } from '../../../shared/base/clock.ts';
import type { LimitHeaders } from '../api/limit_headers.ts';
import type { Allowance, TenantLimits } from '../conductor/tenant_limits.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Let in by the limits of its tenant; undefined without any, and when the handler of the route has taken it over. */
    allowance: Allowance | undefined;
    /** Sets the headers about its limits; undefined without any. Whoever sends the answer calls it, since both change until then. */
    showLimits: (() => void) | undefined;
  }
}

interface Checked {
  readonly limits: TenantLimits;
  readonly clock: Clock;
  /** Form of the headers about limits. */
  readonly form: LimitHeaders;
}

/** Installs the check for the routes of a scope, after that of who sends a request. */
export function checkLimits(app: FastifyInstance, { limits, clock, form }: Checked): void {
  app.decorateRequest('allowance');
  app.decorateRequest('showLimits');
  app.addHook('onRequest', (request, reply, done) => {
    const { caller } = request;
    const { raw } = reply;
    const show = (): void => {
      const view = raw.headersSent ? undefined : limits.view(caller);
      if (!view) return;
      for (const [name, value] of form(view, clock.wallMs())) raw.setHeader(name, value);
    };
    request.showLimits = show;
    try {
      request.allowance = limits.begin(caller);
    } catch (error) {
      done(error as Error);
      return;
    }
    if (request.allowance) {
      const { socket } = request.raw;
      // A client may leave, or be refused, before its body has come. A response that waits for another on its connection emits no 'close'.
      const closed = (): void => {
        socket.removeListener('close', closed);
        raw.removeListener('close', closed);
        request.allowance?.end();
      };
      socket.once('close', closed);
      raw.once('close', closed);
    }
    done();
  });
  // Answers of the handler itself do not come here.
  app.addHook('onSend', (request, _reply, payload, done) => {
    request.showLimits?.();
    done(null, payload);
  });
}
