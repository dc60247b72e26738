/** Routes that show the inside of the cluster: metrics, the dashboard and its `/api/*`. */
import type { FastifyInstance } from 'fastify';
import { poolView } from '../observe/pool_view.ts';
import { Exposition, scopes, type Scope } from '../metrics/exposition.ts';
import type { EventPage } from '../../../shared/protocol/router_api.ts';
import { EVENT_KINDS } from '../observe/event_kinds.ts';
import type { HttpApp } from '../router.ts';
import { addBlocksRoute } from './blocks_route.ts';
import { compressed } from './compressed.ts';
import { addDashboardRoutes } from './dashboard_routes.ts';
import { addHistoryRoute, addStreamRoute } from './history_routes.ts';
import { addProfileRoute } from './profile_route.ts';
import { choicesOf, integerOf, refuseUnknown, textOf, type Query } from './query.ts';
import { addRequestRoutes } from './request_routes.ts';
import { adminRoute } from './route_access.ts';

const DEFAULT_LISTED = 100;

/** Adds the routes of metrics, requests, the pool and its blocks to the server. */
export function addInsideRoutes(app: FastifyInstance, httpApp: HttpApp): void {
  const { decisions, hardware, exposition } = httpApp;
  type Asked = { Querystring: Query };
  app.get<Asked>('/metrics', { ...compressed, ...adminRoute }, async ({ query }, reply) => {
    const [scope, ...others] = choicesOf(query, 'scope', scopes) ?? [];
    const text = await exposition.text(others.length > 0 ? undefined : (scope as Scope | undefined));
    return reply.type(Exposition.contentType).send(text);
  });
  const limitOf = (query: Query): number => integerOf(query, 'limit', DEFAULT_LISTED, { least: 1 });
  addRequestRoutes(app, httpApp);
  app.get<Asked>('/api/decisions', { ...compressed, ...adminRoute }, ({ query }) => ({
    decisions: decisions().slice(-limitOf(query)).reverse(),
  }));
  app.get<Asked>('/api/hardware', adminRoute, ({ query }) => hardware(textOf(query, 'model')));
  addClusterRoutes(app, httpApp);
  addBlocksRoute(app, httpApp);
}

/** Adds the routes of values over time, the dashboard and a profile to the server. */
export function addWatchRoutes(app: FastifyInstance, httpApp: HttpApp): void {
  addHistoryRoute(app, httpApp);
  addStreamRoute(app, httpApp);
  addDashboardRoutes(app);
  addProfileRoute(app, httpApp);
}

/** Adds the routes of the pool and of what happened in it. */
function addClusterRoutes(app: FastifyInstance, httpApp: HttpApp): void {
  const { context, links, numPromised, view, index, policy, bus, observer, address, losses } = httpApp;
  app.get('/api/pool', { ...compressed, ...adminRoute }, () => {
    const { started_at } = observer.router;
    const health = observer.health(view.all(), context.admission.isDraining);
    const flows = observer.links.list(view.all());
    const seen = { now: observer.now, health, process: observer.process(address), started_at, flows };
    return poolView({ view, index, policy, bus, losses }, { ...context, numPromised }, links(), seen);
  });
  app.get<{ Querystring: Query }>('/api/reuse', adminRoute, ({ query }) => {
    refuseUnknown(query, ['model']);
    const named = textOf(query, 'model');
    if (named !== undefined) context.of(named);
    return observer.reuse.view(named ?? context.servedName, view.all(), observer.now.wallMs);
  });
  app.get<{ Querystring: Query }>('/api/events', { ...compressed, ...adminRoute }, ({ query }) => {
    refuseUnknown(query, ['since', 'kind', 'node', 'limit']);
    const events = observer.events.list({
      since: integerOf(query, 'since', 0, { least: 0 }),
      kinds: choicesOf(query, 'kind', EVENT_KINDS),
      node: textOf(query, 'node'),
      limit: integerOf(query, 'limit', DEFAULT_LISTED, { least: 1 }),
    });
    const { name, epoch } = observer.router;
    return { as_of: observer.now.wallMs, router: { name, epoch }, events } satisfies EventPage;
  });
}
