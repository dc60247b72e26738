/** Tells of each HTTP request when it has ended: for the counts of tenants and the audit log. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Clock } from '../../../shared/base/clock.ts';
import { DONE } from '../../../shared/base/signal.ts';
import { RequestOutcome, type EndedRequest, type OnRequestEnd } from '../record/request_outcome.ts';
import { whenGone } from './client_gone.ts';
import { LEFT } from './http_counts.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Takes what becomes of the request; set where somebody is told of it. */
    outcome: RequestOutcome | undefined;
  }
}

/** Milliseconds for which the end of the server waits for requests whose connections are closed. */
const SETTLE_MS = 500;

/**
 * Tells `onEnd` of each request to a route that is not open to everybody, when its answer has ended and nothing of it is left; added before all
 * hooks that refuse requests. The server closes when all have ended, or SETTLE_MS after the end of its connections.
 */
export function tellEnds(app: FastifyInstance, clock: Clock, onEnd: OnRequestEnd | undefined): void {
  app.decorateRequest('outcome');
  if (!onEnd) return;
  /** Requests that have not ended, as many as the server has open (P1). */
  const open = new Set<Promise<void>>();
  app.addHook('onRequest', (request, reply, done) => {
    if (request.routeOptions.config.access !== 'open') {
      const ended = ending(request, reply, clock).then(onEnd);
      open.add(ended);
      void ended.finally(() => open.delete(ended));
    }
    done();
  });
  app.addHook('onClose', async () => {
    const over = new AbortController();
    await Promise.race([Promise.allSettled(open), clock.sleep(SETTLE_MS, over.signal)]);
    over.abort(DONE);
  });
}

/** Resolves with a request when it has ended. */
async function ending(request: FastifyRequest, reply: FastifyReply, clock: Clock): Promise<EndedRequest> {
  const outcome = (request.outcome = new RequestOutcome());
  const [startedAtMs, beganMs] = [clock.wallMs(), clock.nowMs()];
  const { method, raw, routeOptions } = request;
  const { url = 'none', config } = routeOptions;
  const address = raw.socket.remoteAddress;
  await new Promise<void>((resolve) => {
    whenGone(request, reply, resolve);
  });
  const durationMs = clock.nowMs() - beganMs;
  await outcome.served;
  return {
    startedAtMs,
    durationMs,
    method,
    address,
    route: url.replace(/:(\w+)/g, '{$1}'),
    isForClients: config.access === 'client',
    status: statusOf(reply, outcome),
    caller: request.caller,
    records: outcome.records,
    failure: outcome.failure,
  };
}

function statusOf({ raw }: FastifyReply, { served, failure }: RequestOutcome): number {
  // Streams of the inside, which have no end of their own, end when their reader leaves.
  const isCut = served !== undefined && failure === undefined && !raw.writableFinished;
  return isCut || !raw.headersSent ? LEFT : raw.statusCode;
}
