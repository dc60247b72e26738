/** `/api/profile`: where the CPU time of this router goes, as a Chrome trace. */
import type { FastifyInstance } from 'fastify';
import { DONE } from '../../../shared/base/signal.ts';
import { chromeTrace, CpuProfiler } from '../observe/cpu_profile.ts';
import type { HttpApp } from '../router.ts';
import { whenGone } from './client_gone.ts';
import { integerOf, refuseUnknown, type Query } from './query.ts';
import { adminRoute } from './route_access.ts';

const DEFAULT_SECONDS = 10;
const MAX_SECONDS = 60;

/** Adds the route of the profile, which records one at a time. */
export function addProfileRoute(app: FastifyInstance, { context, observer, address }: HttpApp): void {
  const profiler = new CpuProfiler(context.clock);
  app.get<{ Querystring: Query }>('/api/profile', { exposeHeadRoute: false, ...adminRoute }, async (request, reply) => {
    const { query } = request;
    refuseUnknown(query, ['seconds']);
    const seconds = integerOf(query, 'seconds', DEFAULT_SECONDS, { least: 1, most: MAX_SECONDS });
    if (profiler.isRunning)
      throw Object.assign(new Error('a profile is being recorded already: ask again when it has ended'), {
        statusCode: 409,
      });
    const gone = new AbortController();
    whenGone(request, reply, () => {
      gone.abort(DONE);
    });
    const profile = await profiler.record(seconds, gone.signal);
    const { name, pid } = observer.process(address);
    void reply.header('content-disposition', `attachment; filename="penstock-router-${seconds}s.json"`);
    return chromeTrace(profile, { pid, name: `penstock router ${name}` });
  });
}
