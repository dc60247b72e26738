/** Routes that show the inside of the cluster: metrics, the dashboard and its `/api/*`. */
import { readFileSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';
import { poolView } from '../cluster/pool_view.ts';
import { clusterMetrics } from '../metrics/cluster_metrics.ts';
import { mergeMetrics } from '../metrics/merge_metrics.ts';
import { ParameterFailure } from '../openai/parameter_failure.ts';
import type { HttpApp } from '../router.ts';

const DEFAULT_LISTED = 100;

/** Adds the routes of metrics, the dashboard and `/api/*` to the server. */
export function addInsideRoutes(app: FastifyInstance, httpApp: HttpApp): void {
  const { context, contexts, decisions, links, hardware, numPromised, view, index, policy, bus } = httpApp;
  const cluster = clusterMetrics({ view, index, bus });
  app.get('/metrics', async (_request, reply) => {
    const models = [...new Set([context, ...contexts()])].map(({ metrics }) => metrics.text());
    return reply.type(cluster.contentType).send(mergeMetrics(await Promise.all([...models, cluster.metrics()])));
  });
  app.get('/api/pool', () => poolView({ view, index, policy, bus }, { ...context, numPromised }, links()));
  type Listed = { Querystring: { limit?: string } };
  const limitOf = ({ limit }: Listed['Querystring']): number => {
    const number = Number(limit ?? DEFAULT_LISTED);
    if (!Number.isInteger(number) || number < 1) throw new ParameterFailure('limit: a whole number from 1', 'limit');
    return number;
  };
  app.get<Listed>('/api/requests', ({ query }) => ({ requests: context.requests.list(limitOf(query)) }));
  app.get<Listed>('/api/decisions', ({ query }) => ({ decisions: decisions().slice(-limitOf(query)).reverse() }));
  type Named = { Querystring: { model?: string } };
  app.get<Named>('/api/hardware', ({ query }) => hardware(query.model));
  const dashboard = readFileSync(new URL('./dashboard.html', import.meta.url), 'utf8');
  app.get('/dashboard', (_request, reply) => reply.type('text/html; charset=utf-8').send(dashboard));
  app.get('/', (_request, reply) => reply.redirect('/dashboard'));
}
