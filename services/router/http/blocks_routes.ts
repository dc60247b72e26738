/** Routes that show which blocks lie where: those of all prompts as a tree, and those of one prompt. */
import type { FastifyInstance } from 'fastify';
import { Failure } from '../../../shared/base/failure.ts';
import { noBody, type Body } from '../api/bodies.ts';
import { Lookups } from '../surfaces/lookup/lookup.ts';
import { targetTextsOf } from '../api/request_targets.ts';
import { ParameterFailure } from '../api/parameter_failure.ts';
import type { HttpApp } from '../router.ts';
import { whenGone } from './client_gone.ts';
import { namesOf } from './http_exchange.ts';
import { compressed } from './compressed.ts';
import { integerOf, refuseUnknown, textOf, type Query } from './query.ts';
import { withBody } from './read_body.ts';

/** Milliseconds for a look-up: its prompt is encoded behind those of requests, and where it waits for long the router has too much to do. */
const LOOKUP_MS = 30_000;
/** Milliseconds after which a client may look again. */
const RETRY_MS = 2_000;

const DEFAULT_RUNS = 500;
const MAX_RUNS = 5_000;
const MAX_DEPTH = 1_000;
const KEY = /^[0-9a-f]{16}$/;

/** Adds `/api/blocks` and `/api/lookup` to the server. */
export function addBlocksRoutes(app: FastifyInstance, httpApp: HttpApp): void {
  const { blocks } = httpApp;
  app.get<{ Querystring: Query }>('/api/blocks', compressed, async ({ query }, reply) => {
    refuseUnknown(query, ['root', 'depth', 'limit']);
    const root = textOf(query, 'root');
    if (root !== undefined && !KEY.test(root))
      throw new ParameterFailure('root: the key of a block, 16 hexadecimal digits as `key` of a run has them', 'root');
    const found = await blocks.look({
      root,
      depth: integerOf(query, 'depth', MAX_DEPTH, { least: 1, most: MAX_DEPTH }),
      limit: integerOf(query, 'limit', DEFAULT_RUNS, { least: 1, most: MAX_RUNS }),
    });
    if (found) return found;
    void reply.status(404);
    throw new ParameterFailure('root: nobody holds this block now; leave it out to see all', 'root', 'not_found');
  });
  addLookupRoute(app, httpApp);
}

function addLookupRoute(app: FastifyInstance, { context, index, view }: HttpApp): void {
  const lookups = new Lookups(context, { index, view });
  const { clock, requests, newId } = context;
  app.post('/api/lookup', withBody, async (request, reply) => {
    // A look-up tells what others have asked: who asks is in the log, as for any request.
    const names = { ...namesOf(request.headers), address: request.socket.remoteAddress };
    const trace = requests.open(newId(), '/api/lookup', names);
    const ended = new AbortController();
    const asked = new AbortController();
    whenGone(request, reply, () => {
      asked.abort(new Failure('cancelled', 'the client left'));
    });
    void clock.sleep(LOOKUP_MS, ended.signal).then(() => {
      const options = { retryAfterMs: RETRY_MS };
      asked.abort(new Failure('overloaded', 'the router has no time for the look-up: try again', options));
    });
    try {
      const answer = await lookups.answer(
        (request.body as Body | undefined) ?? noBody,
        targetTextsOf(request.headers),
        asked.signal,
      );
      [trace.model, trace.promptTokens] = [answer.model, answer.prompt_tokens];
      requests.close(trace, 'finished', 'lookup');
      return answer;
    } catch (error) {
      const isCancelled = error instanceof Failure && error.code === 'cancelled';
      requests.close(trace, isCancelled ? 'cancelled' : 'failed', isCancelled ? 'abort' : 'error', error);
      throw error;
    } finally {
      ended.abort();
    }
  });
}
