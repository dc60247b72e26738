/** Routes by which others see whether the router lives, and whether it can answer. */
import type { FastifyInstance } from 'fastify';
import type { HttpApp } from '../router.ts';
import { openRoute } from './route_access.ts';

/** Adds `/health`, `/livez`, `/ping` and their other names. */
export function addHealthRoutes(app: FastifyInstance, { context, view }: HttpApp): void {
  const health = (): { code: number; body: object } => {
    const canGenerate = view.generating().some(({ isPlaceable }) => isPlaceable);
    const status = context.admission.isDraining ? 'draining' : canGenerate ? 'ok' : 'no decode instance';
    const roles = ['prefill', 'decode', 'store'] as const;
    const instances = Object.fromEntries(
      roles.map((role) => [role, view.of(role).filter(({ isCounted }) => isCounted).length]),
    );
    return { code: status === 'ok' ? 200 : 503, body: { status, instances } };
  };
  // The second path is llama.cpp's, the third that of Kubernetes' own servers.
  for (const path of ['/health', '/v1/health', '/readyz']) {
    app.get(path, openRoute, (_request, reply) => {
      const { code, body } = health();
      return reply.status(code).send(body);
    });
  }
  app.get('/livez', openRoute, () => ({ status: 'ok' }));
  // Health check under the path that SageMaker and vLLM use.
  app.route({
    method: ['GET', 'POST'],
    url: '/ping',
    ...openRoute,
    handler: (_request, reply) => reply.status(health().code).send(),
  });
}
