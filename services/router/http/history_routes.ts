/** Routes of what is measured over time: values of series, and the stream of changes. */
import type { FastifyInstance } from 'fastify';
import { ParameterFailure } from '../api/parameter_failure.ts';
import { LiveStream, STREAM_PARTS } from '../observe/live_stream.ts';
import { routerNode } from '../observe/node_view.ts';
import type { HttpApp } from '../router.ts';
import { whenGone } from './client_gone.ts';
import { compressed } from './compressed.ts';
import { choicesOf, integerOf, refuseUnknown, switchOf, textOf, type Query } from './query.ts';
import { adminRoute, whenRevoked } from './route_access.ts';

/** Scopes that an error names. */
const MAX_NAMED = 32;

/** Adds `/api/history`. */
export function addHistoryRoute(app: FastifyInstance, { observer: { history } }: HttpApp): void {
  app.get<{ Querystring: Query }>('/api/history', { ...compressed, ...adminRoute }, ({ query }) => {
    refuseUnknown(query, ['scope', 'series', 'from', 'to', 'step']);
    const scope = textOf(query, 'scope') ?? 'cluster';
    const names = history.seriesOf(scope);
    const series = names && choicesOf(query, 'series', names);
    const time = (name: string): number | undefined => integerOf(query, name, undefined, { least: 0 });
    const body = history.read({ scope, series, from: time('from'), to: time('to'), step: time('step') });
    if (body) return body;
    const { scopes, isFull } = history;
    const listed = scopes.slice(0, MAX_NAMED).join(', ') + (scopes.length > MAX_NAMED ? ' and others' : '');
    const cure = isFull ? '. Not all found room: raise --history-bytes' : '';
    throw new ParameterFailure(
      `scope: nothing is recorded of ${scope.slice(0, 128)}; there are ${listed}${cure}`,
      'scope',
    );
  });
}

/** Adds `/api/stream`, whose readers get a tick each second. */
export function addStreamRoute(app: FastifyInstance, httpApp: HttpApp): void {
  const { context, view, observer, address, losses } = httpApp;
  const { name, epoch } = observer.router;
  const stream = new LiveStream({
    router: { name, epoch },
    moment: () => observer.now,
    instances: () => view.all(),
    health: () => observer.health(view.all(), context.admission.isDraining),
    routerNode: () => routerNode(observer.process(address), context.admission, observer.now),
    now: () => observer.history.now,
    losses: () => losses.get(),
    flows: () => observer.links.list(view.all()),
    events: observer.events,
    requests: context.requests,
  });
  observer.everySecond((isEarly) => {
    stream.tick(isEarly);
  });
  // Without an answer to HEAD, which would never end.
  app.get<{ Querystring: Query }>('/api/stream', { exposeHeadRoute: false, ...adminRoute }, (request, reply) => {
    const { query } = request;
    refuseUnknown(query, STREAM_PARTS);
    const parts = new Set(STREAM_PARTS.filter((part) => switchOf(query, part, true)));
    const { raw } = reply;
    const headers = { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' };
    let hasBegun = false;
    const write = (text: string): void => {
      if (!hasBegun) raw.writeHead(200, headers);
      hasBegun = true;
      raw.write(text);
    };
    const close = stream.open({ isBehind: () => raw.writableNeedDrain || raw.destroyed, write, parts });
    reply.hijack();
    const forget = whenRevoked(request, reply);
    whenGone(request, reply, () => {
      forget();
      close();
    });
  });
}
