/** Routes that show which blocks lie where: a prompt's, by `/api/lookup`. */
import type { FastifyInstance } from 'fastify';
import { Failure } from '../../../shared/base/failure.ts';
import { noBody, type Body } from '../openai/bodies.ts';
import { Lookups } from '../openai/lookup.ts';
import type { HttpApp } from '../router.ts';
import { withBody } from './read_body.ts';

/** Milliseconds for a look-up: its prompt is encoded behind those of requests. */
const LOOKUP_MS = 30_000;

/** Adds the routes to the server. */
export function addBlocksRoutes(app: FastifyInstance, { context, index, view }: HttpApp): void {
  const lookups = new Lookups(context, { index, view });
  const { clock } = context;
  app.post('/api/lookup', withBody, async (request, reply) => {
    const ended = new AbortController();
    const asked = new AbortController();
    reply.raw.once('close', () => {
      asked.abort(new Failure('cancelled', 'the client left'));
    });
    void clock.sleep(LOOKUP_MS, ended.signal).then(() => {
      asked.abort(new Failure('deadline_exceeded', `the look-up took over ${LOOKUP_MS} ms: try again`));
    });
    try {
      return await lookups.answer((request.body as Body | undefined) ?? noBody, asked.signal);
    } finally {
      ended.abort();
    }
  });
}
